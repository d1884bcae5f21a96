// Types of @NAME@.js: @TITLE@.

/** An input, a state or the output. size: numbers of one row (of one step; of a state in all layers and directions). */
export interface Shape {
  readonly name: string;
  readonly shape: readonly number[];
  readonly size: number;
  /** Of a state: what every number is before the first step; null: a constant, which `reset` is given. */
  readonly initial?: number | null;
  /** Of a state: 1; of a constant the layers and directions that have a copy. */
  readonly copies?: number;
}

export declare const facts: {
  readonly name: string;
  readonly title: string;
  readonly dtype: "float32" | "float64";
  readonly inputs: readonly Shape[];
  readonly states: readonly Shape[];
  readonly output: Shape;
  /** Whether it goes a step at a time: not where one direction goes backwards. */
  readonly canStep: boolean;
  /** What the code needs of WebAssembly beyond its first version. */
  readonly features: readonly string[];
};

export type Numbers = @NUMBERS@;
export type Given = Numbers | readonly number[];
/** By name. */
export interface Inputs {
@INPUT_TYPES@
}
export interface States {
@STATE_TYPES@
}
export interface Options {
  /** Sequences that run side by side, each with states of its own. 1 where nothing is said. */
  rows?: number;
}
export type Source = string | URL | Response | ArrayBuffer | ArrayBufferView | WebAssembly.Module;

/** The code, compiled. source: an address, a Response or bytes; nothing: the file beside this one. */
export declare function compile(source?: Source): Promise<WebAssembly.Module>;

/** A network, ready to run. source: as `compile` takes it. */
export declare function open(source?: Source, options?: Options): Promise<Network>;

/** A network with states of its own. What does not fit is a RangeError, which says what would. */
export declare class Network {
  /** Of a module that is compiled, at once: for AudioWorklets and workers, which may not wait. */
  static of(module: WebAssembly.Module, options?: Options): Network;
  readonly rows: number;
  /** One step. x: [rows]@X_AXES@ numbers@OR_NAMED@. Gives [rows]@Y_AXES@, an array that lasts until the next call. */
  step(x: @STEP_TYPE@): Numbers;
  /** All steps of x: [steps][rows]@X_AXES@, from where the states are. Gives [steps][rows]@Y_AXES@, in y if that is there. */
  run(x: @STEP_TYPE@, y?: Numbers): Numbers;
  /** Back to the state before the first step. constants: what the network reads besides, if it does. */
  reset(constants?: Partial<States>): void;
  /** The states as they are now, copied; what is put here is what the next step starts from. */
  get states(): States;
  set states(given: Partial<States>);
}
