// Run the network of a web folder: node run_network.mjs NAME.js asked.json RESULT
// asked: {rows, inputs: {name: file of numbers}, constants: the same}. Writes RESULT.all.raw, all steps in one call, and
// RESULT.each.raw, a step a call, where the network can.
import { readFileSync, writeFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [script, asked, result] = process.argv.slice(2);
const { open, facts } = await import(pathToFileURL(script));
const { rows, inputs, constants } = JSON.parse(readFileSync(asked, "utf8"));
const Numbers = facts.dtype === "float64" ? Float64Array : Float32Array;

function read(files) {
  const numbers = (path) => new Numbers(new Uint8Array(readFileSync(path)).buffer);
  return Object.fromEntries(Object.entries(files).map(([name, path]) => [name, numbers(path)]));
}

const x = read(inputs), held = read(constants);
const network = await open(undefined, { rows });
network.reset(held);
writeFileSync(`${result}.all.raw`, network.run(facts.inputs.length > 1 ? x : x[facts.inputs[0].name]));
if (facts.canStep) {
  network.reset(held);
  const size = facts.inputs[0].size * rows, steps = x[facts.inputs[0].name].length / size;
  const y = new Numbers(steps * rows * facts.output.size);
  for (let t = 0; t < steps; ++t) {
    const now = facts.inputs.map((own) => [own.name, x[own.name].subarray(t * rows * own.size, (t + 1) * rows * own.size)]);
    y.set(network.step(Object.fromEntries(now)), t * rows * facts.output.size);
  }
  writeFileSync(`${result}.each.raw`, y);
}
