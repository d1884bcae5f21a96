// @NAME@.js: @TITLE@.
// Written by tvm_rnn @VERSION@; made again, not edited. What it offers is described in @NAME@.d.ts.

// What this network is. Sizes are of one row; states begin as `initial`; null: a constant, of which each layer has a copy.
export const facts = @FACTS@;

const Numbers = facts.dtype === "float64" ? Float64Array : Float32Array;
const BYTES = Numbers.BYTES_PER_ELEMENT;
const ROOM = 64; // bytes: where arrays begin at multiples of it, steps are quickest

// () => lane 3 of i32x4.relaxed_dot_i8x16_i7x16_add_s(splat(-127), splat(127), splat(1000))
const PRODUCTS = [
  0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 127, 3, 2, 1, 0, 7, 5, 1, 1, 102, 0, 0, 10, 25, 1, 23, 0, 65, 129, 127,
  253, 15, 65, 255, 0, 253, 15, 65, 232, 7, 253, 17, 253, 147, 2, 253, 27, 3, 11,
];

/** Throws where the code multiplies bytes by an instruction that this engine lacks, or has wrong, as V8 11.3 does. */
function checkProducts() {
  if (!facts.features.includes("relaxed-simd")) return;
  const bytes = new Uint8Array(PRODUCTS);
  const valid = WebAssembly.validate(bytes);
  const found = valid && new WebAssembly.Instance(new WebAssembly.Module(bytes)).exports.f();
  if (found === 4 * -127 * 127 + 1000) return;
  const got = valid ? `a product of ${found}` : "none";
  throw new Error(`@NAME@: it needs relaxed SIMD, this engine has ${got}: compile for target "wasm32", weights "int8"`);
}

/** The code, compiled. source: an address, a Response or bytes; nothing: the file beside this one. */
export async function compile(source = new URL("./@NAME@.wasm", import.meta.url)) {
  checkProducts();
  if (source instanceof WebAssembly.Module) return source;
  if (source instanceof ArrayBuffer || ArrayBuffer.isView(source)) return WebAssembly.compile(source);
  if (String(source).startsWith("file:")) {
    const files = "node:fs/promises"; // a name that bundlers leave alone: pages never come here
    return WebAssembly.compile(await (await import(/* @vite-ignore */ files)).readFile(new URL(source)));
  }
  const response = source instanceof Response ? source : await fetch(source);
  if (!response.ok) throw new Error(`@NAME@: ${response.url}: ${response.status} ${response.statusText}`);
  return WebAssembly.compile(await response.arrayBuffer());
}

/** A network, ready to run. source: as `compile` takes it. */
export async function open(source, options) {
  const module = await compile(source);
  return new Network(await WebAssembly.instantiate(module, imports(module)), options);
}

/** What the C library of some compilers asks for, and never calls. */
function imports(module) {
  const found = {};
  for (const own of WebAssembly.Module.imports(module)) (found[own.module] ??= {})[own.name] = () => 52; // "not there"
  return found;
}

export class Network {
  #code;
  #handle;
  #inputs;
  #states;
  #output;
  #room = 0; // steps that arrays have room for
  #rows; // as C takes numbers of 64 bits
  #steps = 1n; // of the last call

  /** Of a module that is compiled, at once: for AudioWorklets and workers, which may not wait. */
  static of(module, options) {
    return new Network(new WebAssembly.Instance(module, imports(module)), options);
  }

  constructor(instance, { rows = 1 } = {}) {
    checkProducts();
    if (!Number.isInteger(rows) || rows < 1) throw new RangeError(`@NAME@: rows: ${rows}, not a whole number from 1`);
    this.rows = rows;
    this.#rows = BigInt(rows);
    this.#code = instance.exports;
    this.#code._initialize?.();
    const place = this.#take(4);
    const status = this.#code.@NAME@_open(0, place);
    this.#handle = new Int32Array(this.#code.memory.buffer, place, 1)[0];
    this.#code.free(place);
    this.#check(status);
    this.#states = facts.states.map((own) => ({ ...this.#array(own.name, own.copies * own.size * rows), copies: own.copies }));
    this.#make(1);
    this.#check(this.#code.@NAME@_reserve(this.#handle, 1n, this.#rows));
    this.#init();
  }

  /** One step. x: [rows][...] numbers, or {name: numbers} of several inputs. The result lasts until the next call. */
  step(x) {
    this.#put(x, 1);
    return this.#call(1);
  }

  /** All steps of x: [steps][rows][...], from where the states are. y: where results go; nothing: a new array. */
  run(x, y) {
    const first = this.#named(x)[facts.inputs[0].name];
    const steps = (first?.length ?? NaN) / (facts.inputs[0].size * this.rows);
    if (!Number.isInteger(steps)) this.#unfit("run", facts.inputs[0], first, "steps x");
    if (y && y.length !== steps * this.rows * facts.output.size)
      throw new RangeError(`@NAME@: run: y has ${y.length} numbers, not ${steps * this.rows * facts.output.size}`);
    if (!steps) return y ?? new Numbers(0);
    this.#make(steps);
    this.#put(x, steps);
    const found = this.#call(steps);
    if (!y) return found.slice();
    y.set(found);
    return y;
  }

  /** Back to the state before the first step. constants: {name: numbers} of what a network reads besides, if it does. */
  reset(constants = {}) {
    this.#init();
    for (const own of facts.states)
      if (own.initial === null && !(own.name in constants)) throw new TypeError(`@NAME@: reset: ${own.name} is missing`);
    this.states = constants;
  }

  /** The states as they are now, copied: {name: [layers and directions][rows][...]}. */
  get states() {
    return Object.fromEntries(this.#states.map((own) => [own.name, this.#view(own).slice(0, own.count / own.copies)]));
  }

  set states(given) {
    for (const [name, values] of Object.entries(given)) {
      const own = this.#states.find((state) => state.name === name);
      if (!own) throw new TypeError(`@NAME@: no state ${name}: ${facts.states.map((state) => state.name).join(", ")}`);
      const count = own.count / own.copies;
      if (values.length !== count) throw new RangeError(`@NAME@: ${name} has ${values.length} numbers, not ${count}`);
      for (let i = 0; i < own.copies; ++i) this.#view(own).set(values, i * count);
    }
  }

  #init() {
    this.#check(this.#code.@NAME@_init_state(this.#handle, this.#rows, ...this.#states.map((own) => own.at)));
  }

  #call(steps) {
    const code = this.#code, at = this.#inputs, states = this.#states, y = this.#output.at, rows = this.#rows;
    if (Number(this.#steps) !== steps) this.#steps = BigInt(steps);
    const status =
      steps === 1 && facts.canStep
        ? code.@NAME@_step(this.#handle, rows, @INPUTS@, @STATES@y)
        : code.@NAME@_sequence(this.#handle, this.#steps, rows, @INPUTS@, @STATES@y, 0, 0);
    if (status) this.#check(status);
    return this.#view(this.#output, steps * this.rows * facts.output.size);
  }

  #named(x) {
    const several = x !== null && typeof x === "object" && !ArrayBuffer.isView(x) && !Array.isArray(x);
    return several ? x : { [facts.inputs[0].name]: x };
  }

  #put(x, steps) {
    if (facts.inputs.length === 1 && ArrayBuffer.isView(x)) return this.#write(x, 0, steps);
    const given = this.#named(x);
    for (let i = 0; i < facts.inputs.length; ++i) this.#write(given[facts.inputs[i].name], i, steps);
  }

  #write(values, number, steps) {
    const count = steps * this.rows * facts.inputs[number].size;
    if (values?.length !== count) this.#unfit("step", facts.inputs[number], values, `${steps} x`);
    this.#view(this.#inputs[number], count).set(values);
  }

  #unfit(what, own, values, steps) {
    const got = values?.length === undefined ? "is no array" : `has ${values.length} numbers`;
    throw new RangeError(`@NAME@: ${what}: ${own.name} ${got}, not ${steps} ${this.rows} rows x ${own.size}`);
  }

  #make(steps) {
    if (steps <= this.#room) return;
    if (this.#room) for (const own of [...this.#inputs, this.#output]) this.#code.free(own.place);
    this.#inputs = facts.inputs.map((own) => this.#array(own.name, own.size * this.rows * steps));
    this.#output = this.#array("y", facts.output.size * this.rows * steps);
    this.#room = steps;
  }

  #array(name, count) {
    const place = this.#take(count * BYTES + ROOM);
    return { name, count, place, view: null, at: Math.ceil(place / ROOM) * ROOM };
  }

  #take(bytes) {
    const place = this.#code.malloc(bytes);
    if (!place) throw new RangeError(`@NAME@: no memory for ${bytes} bytes`);
    return place;
  }

  #view(own, count = own.count) {
    if (own.view?.buffer !== this.#code.memory.buffer || own.view.length !== count)
      own.view = new Numbers(this.#code.memory.buffer, own.at, count);
    return own.view;
  }

  #check(status) {
    if (!status) return;
    const bytes = new Uint8Array(this.#code.memory.buffer);
    let text = ""; // AudioWorklets have no TextDecoder
    for (let at = this.#code.@NAME@_error(); bytes[at]; ++at) text += String.fromCharCode(bytes[at]);
    throw new Error(`@NAME@: ${text}`);
  }
}
