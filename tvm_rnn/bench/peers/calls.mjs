/* Time a network's steps in node, one after the other, as `calls.h` does in C.

   In, from the command line: onnxruntime-web's module, or "-" for a folder of ours; the network, NAME.js or .onnx; files
   of x, of weights (nobody's) and of y to write; seconds (nobody's); then on stdin a line for each turn. Out: y of all
   steps; an empty line when that is done; then a line for each turn: a step's time in ns, its 99th and 99.9th percentile,
   and the 99.9th of steps that do nothing. The first is of a burst of about 20 ms, of the thread's CPU time, so that
   others on the machine count little; percentiles are of CALLS steps that are timed one by one by a clock on the wall. */
import { readFileSync, writeFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const CALLS = 5000; // timed one by one; so many before all, until what compiles as it runs has done so
const BURST = 2e4; // us
const [engine, path, from, , into] = process.argv.slice(2);
const x = new Float32Array(new Uint8Array(readFileSync(from)).buffer);

async function ours() {
  const { open, facts } = await import(pathToFileURL(path));
  const network = await open();
  return { inputs: facts.inputs[0].size, reset: () => network.reset(), step: (now) => network.step(now) };
}

async function theirs() {
  const ort = await import(pathToFileURL(engine));
  ort.env.wasm.numThreads = 1;
  const session = await ort.InferenceSession.create(path, { executionProviders: ["wasm"] });
  const [{ shape }, ...states] = session.inputMetadata;
  const zeros = ({ shape }) => new ort.Tensor("float32", new Float32Array(shape.reduce((a, b) => a * b)), shape);
  let held;
  const step = async (now) => {
    const made = await session.run({ x: new ort.Tensor("float32", now, shape), ...held });
    for (const { name } of states) held[name] = made[`${name}_out`];
    return made.y.data;
  };
  const reset = () => (held = Object.fromEntries(states.map((state) => [state.name, zeros(state)])));
  return { inputs: shape.at(-1), reset, step, waits: true };
}

const { inputs, reset, step, waits } = await (engine === "-" ? ours() : theirs());
const steps = Array.from({ length: x.length / inputs }, (_, t) => x.subarray(t * inputs, (t + 1) * inputs));
let next = 0;
const following = () => steps[next++ % steps.length];
// us of this thread. Others optimise and collect what is no longer used; only Linux tells them apart.
function used() {
  try {
    return Number(readFileSync(`/proc/self/task/${process.pid}/schedstat`, "utf8").split(" ")[0]) / 1e3;
  } catch {
    return Object.values(process.cpuUsage()).reduce((a, b) => a + b);
  }
}

// What is there at once is not waited for: waiting takes longer than a step.
async function burst(count) {
  if (waits) for (let i = 0; i < count; ++i) await step(following());
  else for (let i = 0; i < count; ++i) step(following());
}

async function timed(count) {
  const begun = used();
  await burst(count);
  return used() - begun;
}

function percentile(times, share) {
  return Float64Array.from(times).sort()[Math.floor(times.length * share)];
}

reset();
const made = [];
for (const now of steps) made.push(Float32Array.from(await step(now)));
writeFileSync(into, Buffer.concat(made.map((y) => Buffer.from(y.buffer))));

await burst(CALLS);
let count = 16;
while ((await timed(count)) < BURST) count *= 2;
async function percentiles(waits, call) {
  const calls = [];
  for (let i = 0; i < CALLS; ++i) {
    const begun = performance.now();
    if (waits) await call(following());
    else call(following());
    calls.push(1e6 * (performance.now() - begun));
  }
  return [percentile(calls, 0.99), percentile(calls, 0.999)];
}
console.log();
for await (const _ of createInterface({ input: process.stdin })) {
  await burst(count >> 3); // what others left in the caches
  const each = (1e3 * (await timed(count))) / count;
  const tail = await percentiles(waits, step), [, clock] = await percentiles(false, () => {});
  console.log(each, ...tail, clock);
}
