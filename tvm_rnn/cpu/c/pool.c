/* The thread pool of compiled modules: linked into every .so, one pool per process.

   In: parallel loops of generated code, which call through the pointer __TVMBackendParallelLaunch of their own .so.
   Out: their tasks, run on the calling thread and on workers; a task's non-zero result is the launch's, and its error
   object moves to the calling thread. The first .so loaded provides the pool: it registers the address of its table of
   functions with tvm_ffi and pins itself in memory; later ones use that table.

   A worker has one slot. The launcher makes slots READY, runs its own tasks, then takes back and runs what is still
   READY (the worker sleeps, or the machine is busy) and waits for the others: a launch never waits for a worker to wake
   up, and an overloaded machine makes it serial, not slow.

   Where Python is in the process, its main thread looks for signals as it works (tvm_rnn_look, once per tile of time, and
   each launch): a handler that raises, as Ctrl-C's does, ends the call with that error. C11 with GNU extensions. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/syscall.h>
#endif

#include <tvm/ffi/c_api.h>

#define EXPORT __attribute__((visibility("default")))
#define POOL_NAME "tvm_rnn.pool.v1"

typedef struct { void* sync_handle; int32_t num_task; } TVMParallelGroupEnv;
typedef int (*Body)(int task_id, TVMParallelGroupEnv* env, void* data);
typedef int (*Launch)(Body body, void* data, int num_task);

/* Present only where the generated code has a parallel loop. */
extern __attribute__((weak)) void* __TVMBackendParallelLaunch;

enum { MAX_THREADS = 256, IDLE = 0, READY = 1, RUNNING = 2 };
/* Spin for longer than the serial part between two parallel loops, or two calls of a small model, and no longer than an
   idle process can afford: who wakes a thread spends 20 us on it. The launcher yields after a while: its core may be
   what the worker waits for. */
enum { SPIN_NS = 200000, PAUSES_PER_CLOCK_READ = 32, PAUSES_BEFORE_YIELD = 2000 };
/* Of looks for signals: how far apart they are, for each takes Python's lock; of how many tasks one reads the clock. */
enum { LOOK_NS = 100000000, TASKS_PER_LOOK = 16 };

struct slot {
  int state;        /* IDLE -> READY (launcher) -> RUNNING (worker) -> IDLE, or READY -> IDLE (taken back) */
  int asleep;       /* the worker waits on `wake`, or is about to */
  int status;       /* result of its tasks: task, task + stride, ... below job.env.num_task */
  int task, stride;
  TVMFFIObjectHandle error;
  pthread_mutex_t mutex;
  pthread_cond_t wake;
} __attribute__((aligned(64)));

/* Another layout needs another POOL_NAME: modules of different versions share a process. */
struct table { Launch launch; int (*use)(int threads), (*size)(void), (*resize)(int threads); };

static struct slot slots[MAX_THREADS]; /* the first is the launcher's and stays unused */
static int busy, started = 1;          /* a launch is under way; threads that exist, the launcher's included */
static int size_limit, prepared;       /* 0: not decided yet; the fork handler is registered */
static struct { Body body; void* data; TVMParallelGroupEnv env; int stopped; } job;
static __thread int thread_limit = 1, inside; /* `inside`: this thread runs a task, a nested launch is serial */
/* Some call has asked for more than one thread. Until then no thread-local variable is touched: a thread's first look at
   one may take memory, which a real-time thread must not. */
static int threaded;

static inline void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

static int64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int claim(struct slot* slot, int state) {
  int expected = READY;
  return __atomic_load_n(&slot->state, __ATOMIC_RELAXED) == READY &&
         __atomic_compare_exchange_n(&slot->state, &expected, state, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

#define ALREADY_SET "EnvErrorAlreadySet"
static int (*check_signals)(void); /* libtvm_ffi's; null where that is not */

/* Python's handlers of signals, run now if this is its main thread and the last look was LOOK_NS ago. 0, or -1 where one
   raised an error: tvm_ffi looks for it if the call fails with an ALREADY_SET. */
static int look(void) {
  static __thread int64_t next;
  if (!check_signals) return 0;
#ifdef __linux__
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC_COARSE, &t); /* a third of the time of the exact one */
  int64_t now = (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
#else
  int64_t now = now_ns();
#endif
  if (now < next) return 0;
  next = now + LOOK_NS;
#ifdef __linux__
  if (getpid() != syscall(SYS_gettid)) return 0;
#elif defined(__APPLE__)
  if (!pthread_main_np()) return 0;
#endif
  return check_signals();
}

static void wait_for_work(struct slot* slot) {
  for (int64_t end = 0;;) {
    for (int i = 0; i < PAUSES_PER_CLOCK_READ; ++i) {
      if (claim(slot, RUNNING)) return;
      relax();
    }
    int64_t now = now_ns();
    if (!end) end = now + SPIN_NS;
    if (now < end) continue;
    pthread_mutex_lock(&slot->mutex);
    /* Sequentially consistent on both sides: either the launcher sees `asleep`, or this thread sees READY. */
    __atomic_store_n(&slot->asleep, 1, __ATOMIC_SEQ_CST);
    /* Once: who is woken waits awake again. Its work may have been done by others meanwhile, but more comes soon. */
    if (__atomic_load_n(&slot->state, __ATOMIC_SEQ_CST) != READY) pthread_cond_wait(&slot->wake, &slot->mutex);
    __atomic_store_n(&slot->asleep, 0, __ATOMIC_SEQ_CST);
    pthread_mutex_unlock(&slot->mutex);
    end = 0;
  }
}

/* Of a thread that launched; it looks for signals. `stopped`: where others read that they need not go on. */
static int run_tasks(Body body, void* data, TVMParallelGroupEnv* env, int task, int stride, int* stopped) {
  int result = 0;
  for (int i = 0; task < env->num_task; task += stride, ++i) {
    if (i % TASKS_PER_LOOK == 0 && look()) {
      __atomic_store_n(stopped, 1, __ATOMIC_RELAXED);
      TVMFFIErrorSetRaisedFromCStr(ALREADY_SET, "");
      return -1;
    }
    int status = body(task, env, data);
    if (status && !result) result = status;
  }
  return result;
}

static void* worker(void* argument) {
  struct slot* slot = (struct slot*)argument;
  inside = 1;
  for (;;) {
    wait_for_work(slot);
    for (int i = slot->task; i < job.env.num_task && !__atomic_load_n(&job.stopped, __ATOMIC_RELAXED); i += slot->stride) {
      int status = job.body(i, &job.env, job.data);
      if (status && !slot->status) slot->status = status;
    }
    /* The error lives in this thread's storage; the caller looks in its own. */
    if (slot->status) TVMFFIErrorMoveFromRaised(&slot->error);
    __atomic_store_n(&slot->state, IDLE, __ATOMIC_RELEASE);
  }
  return 0;
}

/* Threads do not survive fork: the child starts afresh, whatever state the parent's pool was in. */
static void after_fork(void) {
  busy = inside = 0;
  started = 1;
  memset(slots, 0, sizeof slots);
}

/* This .so may be unloaded by its user while its workers run and other modules launch through it. */
static void pin(void) {
  Dl_info info;
  if (dladdr((void*)&size_limit, &info) && info.dli_fname) dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
}

/* Before the first launch: a fork between a launch and the registration would leave the child with a pool that is busy. */
static void prepare(void) {
  if (!prepared++) pin(), pthread_atfork(0, 0, after_fork);
}

/* Called with `busy` held. Fewer threads than asked for is not an error. Signals go to the user's threads. */
static void start_workers(int threads) {
  sigset_t all, old;
  pthread_attr_t detached;
  prepare();
  pthread_attr_init(&detached);
  pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  while (started < threads) {
    struct slot* slot = &slots[started];
    pthread_t thread;
    pthread_mutex_init(&slot->mutex, 0);
    pthread_cond_init(&slot->wake, 0);
    if (pthread_create(&thread, &detached, worker, slot)) break;
    ++started;
  }
  pthread_sigmask(SIG_SETMASK, &old, 0);
  pthread_attr_destroy(&detached);
}

static int clamp(long threads) { return threads < 1 ? 1 : threads > MAX_THREADS ? MAX_THREADS : (int)threads; }

static int default_size(void) {
  static const char* const names[] = {"TVM_RNN_NUM_THREADS", "OMP_NUM_THREADS"};
  for (int i = 0; i < 2; ++i) {
    const char* text = getenv(names[i]);
    long wanted = text ? strtol(text, 0, 10) : 0; /* OMP_NUM_THREADS may be a list: its first number counts */
    if (wanted > 0) return clamp(wanted);
  }
#ifdef __linux__
  cpu_set_t mask;
  if (!sched_getaffinity(0, sizeof mask, &mask)) return clamp(CPU_COUNT(&mask));
#endif
  return clamp(sysconf(_SC_NPROCESSORS_ONLN));
}

static int own_size(void) {
  int size = __atomic_load_n(&size_limit, __ATOMIC_RELAXED);
  if (!size) {
    size = default_size();
    __atomic_store_n(&size_limit, size, __ATOMIC_RELAXED);
  }
  return size;
}

/* Threads above the new size stay asleep; new ones start with the first launch that needs them. */
static int own_resize(int threads) {
  __atomic_store_n(&size_limit, clamp(threads), __ATOMIC_RELAXED);
  return own_size();
}

static int own_use(int threads) {
  if (threads > 1) __atomic_store_n(&threaded, 1, __ATOMIC_RELAXED);
  return __atomic_load_n(&threaded, __ATOMIC_RELAXED) ? (thread_limit = clamp(threads)) : 1;
}

static int launch_parallel(Body body, void* data, int num_task, int threads) {
  job.body = body;
  job.data = data;
  job.env.num_task = num_task;
  job.stopped = 0;
  for (int i = 1; i < threads; ++i) {
    struct slot* slot = &slots[i];
    slot->task = i;
    slot->stride = threads;
    slot->status = 0;
    slot->error = 0;
    __atomic_store_n(&slot->state, READY, __ATOMIC_SEQ_CST);
    if (!__atomic_load_n(&slot->asleep, __ATOMIC_SEQ_CST)) continue;
    pthread_mutex_lock(&slot->mutex);
    pthread_cond_signal(&slot->wake);
    pthread_mutex_unlock(&slot->mutex);
  }
  inside = 1;
  int result = run_tasks(body, data, &job.env, 0, threads, &job.stopped);
  for (int i = 1; i < threads; ++i) {
    int left = claim(&slots[i], IDLE) && !job.stopped;
    int status = left ? run_tasks(body, data, &job.env, i, threads, &job.stopped) : 0;
    if (status && !result) result = status;
  }
  inside = 0;
  for (int i = 1; i < threads; ++i) {
    for (int pauses = 0; __atomic_load_n(&slots[i].state, __ATOMIC_ACQUIRE) != IDLE;) {
      if (pauses == PAUSES_BEFORE_YIELD) sched_yield();
      else ++pauses, relax();
    }
    if (slots[i].status && !result) result = slots[i].status;
    if (!slots[i].error) continue;
    TVMFFIErrorSetRaised(slots[i].error);
    TVMFFIObjectDecRef(slots[i].error);
  }
  return result;
}

static int own_launch(Body body, void* data, int asked) {
  int num_task = asked, threads = __atomic_load_n(&threaded, __ATOMIC_RELAXED) ? own_size() : 1;
  if (threads > 1 && threads > thread_limit) threads = thread_limit;
  if (num_task <= 0) num_task = threads;
  if (threads > num_task) threads = num_task;
  /* A second user thread runs its loop by itself: waiting for the pool would be slower, and could deadlock. */
  if (threads < 2 || inside || __atomic_exchange_n(&busy, 1, __ATOMIC_ACQUIRE)) {
    TVMParallelGroupEnv env = {0, asked > 0 ? asked : 1};
    int stopped = 0;
    return run_tasks(body, data, &env, 0, 1, &stopped);
  }
  if (started < threads) start_workers(threads);
  if (threads > started) threads = started;
  int result = launch_parallel(body, data, num_task, threads);
  __atomic_store_n(&busy, 0, __ATOMIC_RELEASE);
  return result;
}

static const struct table own = {own_launch, own_use, own_size, own_resize};
static const struct table* pool = &own;

#define UNUSED __attribute__((unused))
#define ARGUMENTS UNUSED void *self, UNUSED const TVMFFIAny *args, UNUSED int32_t count, TVMFFIAny *result

static int answer(TVMFFIAny* result, int64_t value) {
  memset(result, 0, sizeof *result);
  result->type_index = kTVMFFIInt;
  result->v_int64 = value;
  return 0;
}

static int table_address(ARGUMENTS) { return answer(result, (int64_t)(intptr_t)&own); }

/* The table of the process's pool; null where no module has provided one yet. */
static const struct table* find_pool(const TVMFFIByteArray* name) {
  TVMFFIObjectHandle function = 0;
  TVMFFIAny result = {0};
  if (TVMFFIFunctionGetGlobal(name, &function) || !function) return 0;
  TVMFFIFunctionCall(function, 0, 0, &result);
  TVMFFIObjectDecRef(function);
  return (const struct table*)(intptr_t)result.v_int64;
}

/* Runs first under the loader's lock, so two modules cannot both provide the pool. */
__attribute__((constructor)) static void install(void) {
  const TVMFFIByteArray name = {POOL_NAME, sizeof POOL_NAME - 1};
  const struct table* found = find_pool(&name);
  TVMFFIObjectHandle function = 0;
  if (!found && !TVMFFIFunctionCreate(0, table_address, 0, &function)) {
    prepare();
    TVMFFIFunctionSetGlobal(&name, function, 0);
    TVMFFIObjectDecRef(function);
  }
  pool = found ? found : &own;
  *(void**)&check_signals = dlsym(RTLD_DEFAULT, "TVMFFIEnvCheckSignals");
  if (&__TVMBackendParallelLaunch) __TVMBackendParallelLaunch = (void*)pool->launch;
}

EXPORT int tvm_rnn_pool_use(int threads) { return pool->use(threads); }

/* What generated code asks once per tile of time; it fails with ALREADY_SET where this is not 0. */
EXPORT int tvm_rnn_look(void) { return look(); }

/* pool_install() -> 1 where this .so provides the pool, else 0. Needed once more after loading where libtvm_runtime is
   in the process: its loader overwrites the pointer that the constructor set. */
EXPORT int __tvm_ffi_pool_install(ARGUMENTS) {
  install();
  return answer(result, pool == &own);
}

EXPORT int __tvm_ffi_pool_size(ARGUMENTS) { return answer(result, pool->size()); }

EXPORT int __tvm_ffi_pool_resize(ARGUMENTS) {
  if (count != 1 || args[0].type_index != kTVMFFIInt || args[0].v_int64 < 1) {
    TVMFFIErrorSetRaisedFromCStr("ValueError", "pool_resize takes one integer, at least 1: the number of threads");
    return -1;
  }
  return answer(result, pool->resize(clamp((long)args[0].v_int64)));
}
