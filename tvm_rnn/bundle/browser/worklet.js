// The network @NAME@ as an AudioWorkletProcessor. Written by tvm_rnn @VERSION@; made again, not edited.
//
//   const module = await compile(); // of @NAME@.js
//   await context.audioWorklet.addModule(new URL("./@NAME@.worklet.js", import.meta.url));
//   const node = new AudioWorkletNode(context, "@NAME@", { processorOptions: { module } });
//
// One row: the first channel of the sound. Where a step reads one number, each sample is a step, and channel c of the
// result is number c of the output. Where it reads I numbers, each I samples are a step; an output of I numbers is the
// sound, I samples late, and any other comes as a message, {y}, while the sound goes through.
// Messages to it: {reset: true}; {inputs: {name: numbers}}: what other inputs are from now on.
// Messages from it, twice a second: {load}, of a render quantum's time; the share that the network takes.
import { facts, Network } from "./@NAME@.js";

const Numbers = facts.dtype === "float64" ? Float64Array : Float32Array;
const clock = globalThis.performance ?? Date; // one of milliseconds is right too, on average

class Processor extends AudioWorkletProcessor {
  constructor({ processorOptions: { module } }) {
    super();
    this.network = Network.of(module);
    this.given = Object.fromEntries(facts.inputs.map((own) => [own.name, new Numbers(own.size)]));
    this.x = this.given[facts.inputs[0].name];
    this.y = new Numbers(facts.output.size);
    this.late = new Numbers(this.x.length);
    this.isSound = facts.output.size === this.x.length;
    this.at = this.spent = this.quanta = 0;
    this.block = null; // all samples of a quantum are one call
    this.port.onmessage = ({ data }) => {
      if (data.reset) this.network.reset(data.constants);
      for (const [name, values] of Object.entries(data.inputs ?? {})) this.given[name]?.set(values);
    };
  }

  process([from], [to]) {
    const started = clock.now();
    const samples = to[0].length;
    if (this.block?.length !== samples) (this.block = new Numbers(samples)), (this.made = new Numbers(samples * this.y.length));
    if (from.length) this.block.set(from[0]);
    else this.block.fill(0);
    if (this.x.length > 1) this.frames(to);
    else if (facts.inputs.length === 1) this.split(this.network.run(this.block, this.made), to);
    else {
      for (let i = 0; i < samples; ++i) {
        this.x[0] = this.block[i];
        this.made.set(this.network.step(this.given), i * this.y.length);
      }
      this.split(this.made, to);
    }
    this.spent += clock.now() - started;
    if (++this.quanta * samples >= sampleRate / 2) {
      this.port.postMessage({ load: this.spent / ((1000 * this.quanta * samples) / sampleRate) });
      this.spent = this.quanta = 0;
    }
    return true;
  }

  split(y, to) {
    const width = this.y.length;
    if (width === 1) for (const channel of to) channel.set(y);
    else for (let c = 0; c < to.length; ++c) for (let i = 0; i < to[c].length; ++i) to[c][i] = y[i * width + Math.min(c, width - 1)];
  }

  frames(to) {
    for (let i = 0; i < this.block.length; ++i) {
      for (const channel of to) channel[i] = this.isSound ? this.late[this.at] : this.block[i];
      this.x[this.at] = this.block[i];
      if (++this.at < this.x.length) continue;
      this.at = 0;
      const y = this.network.step(this.given);
      if (this.isSound) this.late.set(y);
      else this.port.postMessage({ y: y.slice() });
    }
  }
}

registerProcessor("@NAME@", Processor);
