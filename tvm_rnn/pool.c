/* The thread pool of compiled modules: linked into every .so, one pool per process.

   In: parallel loops of generated code, which call through the pointer __TVMBackendParallelLaunch of their own .so.
   Out: the loop's tasks, run on the calling thread and on workers; a non-zero result of any task is the result of the
   launch, and its error object is moved to the calling thread.

   Every .so carries this file, but the first one loaded provides the pool: it registers the address of its table of
   functions with tvm_ffi under the name below and pins itself in memory; later ones find the table and use it.

   A worker has one slot. The launcher makes slots READY, runs task 0 itself, then takes back whatever slot is still
   READY (its worker sleeps, or the machine is busy) and runs that task too, and waits for the others. So a launch never
   waits for a worker to wake up, and an overloaded machine makes it serial, not slow.

   This is valid C11 with GNU atomics and valid C++, for gcc, g++ and clang. */
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

#include <tvm/ffi/c_api.h>

#define EXPORT __attribute__((visibility("default")))
#define POOL_NAME "tvm_rnn.pool.v1" /* a change of struct table needs a new name */

#ifdef __cplusplus
extern "C" {
#endif

typedef struct { void* sync_handle; int32_t num_task; } TVMParallelGroupEnv;
typedef int (*Body)(int task_id, TVMParallelGroupEnv* env, void* data);
typedef int (*Launch)(Body body, void* data, int num_task);

/* Present only where the generated code has a parallel loop. */
extern __attribute__((weak)) void* __TVMBackendParallelLaunch;

enum { MAX_THREADS = 256, IDLE = 0, READY = 1, RUNNING = 2 };
/* Longer than the serial part between two parallel loops of one step (1-10 us), short enough that an idle process
   stops using the CPU at once as far as a person can see. */
enum { SPIN_NS = 40000, PAUSES_PER_CLOCK_READ = 32 };

struct slot {
  int state;             /* IDLE -> READY (launcher) -> RUNNING (worker) -> IDLE, or READY -> IDLE (taken back) */
  int asleep;            /* the worker waits, or is about to, on `wake` */
  int status;            /* result of the task */
  int task, stride;      /* runs tasks task, task + stride, ... below env->num_task */
  TVMFFIObjectHandle error;
  pthread_mutex_t mutex;
  pthread_cond_t wake;
} __attribute__((aligned(64)));

struct table {
  Launch launch;
  int (*use)(int threads);
  int (*size)(void);
  int (*resize)(int threads);
};

static struct slot slots[MAX_THREADS]; /* slot 0 is the launcher's and stays unused */
static int busy;                       /* a launch is under way */
static int started = 1;                /* threads that exist, the calling one included */
static int size_limit;                 /* 0: not decided yet */
static int prepared;                   /* fork handler registered */
static Body job;
static void* job_data;
static TVMParallelGroupEnv job_env;
static __thread int thread_limit = 1;
static __thread int inside; /* this thread runs a task: a nested launch is serial */

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

static int wait_for_work(struct slot* slot) {
  int64_t end = 0;
  for (;;) {
    for (int i = 0; i < PAUSES_PER_CLOCK_READ; ++i) {
      int expected = READY;
      if (__atomic_load_n(&slot->state, __ATOMIC_RELAXED) == READY &&
          __atomic_compare_exchange_n(&slot->state, &expected, RUNNING, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
        return 1;
      relax();
    }
    int64_t now = now_ns();
    if (!end) end = now + SPIN_NS;
    if (now < end) continue;
    pthread_mutex_lock(&slot->mutex);
    /* Sequentially consistent on both sides: either the launcher sees `asleep`, or this thread sees READY. */
    __atomic_store_n(&slot->asleep, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&slot->state, __ATOMIC_SEQ_CST) != READY) pthread_cond_wait(&slot->wake, &slot->mutex);
    __atomic_store_n(&slot->asleep, 0, __ATOMIC_SEQ_CST);
    pthread_mutex_unlock(&slot->mutex);
    end = 0;
  }
}

static int run_tasks(int task, int stride) {
  int result = 0;
  for (; task < job_env.num_task; task += stride) {
    int status = job(task, &job_env, job_data);
    if (status && !result) result = status;
  }
  return result;
}

static void* worker(void* argument) {
  struct slot* slot = (struct slot*)argument;
  inside = 1;
  while (wait_for_work(slot)) {
    slot->status = run_tasks(slot->task, slot->stride);
    /* The error lives in this thread's storage; the caller looks in its own. */
    if (slot->status) TVMFFIErrorMoveFromRaised(&slot->error);
    __atomic_store_n(&slot->state, IDLE, __ATOMIC_RELEASE);
  }
  return 0;
}

/* Threads do not survive fork: the child starts afresh, whatever state the parent's pool was in. */
static void after_fork(void) {
  started = 1;
  busy = 0;
  inside = 0;
  memset(slots, 0, sizeof slots);
}

/* This .so may be unloaded by its user while its workers run and other modules launch through it. */
static void pin(void) {
  Dl_info info;
  if (dladdr((void*)&size_limit, &info) && info.dli_fname) dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
}

/* Called with `busy` held. Fewer threads than asked for is not an error. */
static void start_workers(int threads) {
  sigset_t all, old;
  pthread_attr_t detached;
  if (started >= threads) return;
  if (!prepared) {
    prepared = 1;
    pin();
    pthread_atfork(0, 0, after_fork);
  }
  pthread_attr_init(&detached);
  pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
  sigfillset(&all); /* signals go to the user's threads */
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
  thread_limit = clamp(threads);
  return 0;
}

static int launch_serial(Body body, void* data, int num_task) {
  TVMParallelGroupEnv env = {0, num_task > 0 ? num_task : 1};
  int result = 0;
  for (int task = 0; task < env.num_task; ++task) {
    int status = body(task, &env, data);
    if (status && !result) result = status;
  }
  return result;
}

static int launch_parallel(Body body, void* data, int num_task, int threads) {
  TVMFFIObjectHandle error = 0;
  job = body;
  job_data = data;
  job_env.num_task = num_task;
  for (int i = 1; i < threads; ++i) {
    struct slot* slot = &slots[i];
    slot->task = i;
    slot->stride = threads;
    slot->status = 0;
    slot->error = 0;
    __atomic_store_n(&slot->state, READY, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&slot->asleep, __ATOMIC_SEQ_CST)) {
      pthread_mutex_lock(&slot->mutex);
      pthread_cond_signal(&slot->wake);
      pthread_mutex_unlock(&slot->mutex);
    }
  }
  inside = 1;
  int result = run_tasks(0, threads);
  for (int i = 1; i < threads; ++i) {
    int expected = READY;
    if (!__atomic_compare_exchange_n(&slots[i].state, &expected, IDLE, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) continue;
    int status = run_tasks(i, threads);
    if (status && !result) result = status;
  }
  inside = 0;
  for (int i = 1; i < threads; ++i) {
    int64_t spins = 0; /* after some microseconds the core may be needed by the very worker that is waited for */
    while (__atomic_load_n(&slots[i].state, __ATOMIC_ACQUIRE) != IDLE) {
      if (++spins < 2000) relax();
      else sched_yield();
    }
    if (slots[i].status && !result) result = slots[i].status;
    if (!slots[i].error) continue;
    if (error) TVMFFIObjectDecRef(slots[i].error);
    else error = slots[i].error;
  }
  if (error) {
    TVMFFIErrorSetRaised(error);
    TVMFFIObjectDecRef(error);
  }
  return result;
}

static int own_launch(Body body, void* data, int num_task) {
  int threads = own_size();
  if (threads > thread_limit) threads = thread_limit;
  if (num_task > 0 && threads > num_task) threads = num_task;
  /* A second user thread runs its loop by itself: waiting for the pool would be slower, and could deadlock. */
  if (threads < 2 || inside || __atomic_exchange_n(&busy, 1, __ATOMIC_ACQUIRE)) return launch_serial(body, data, num_task);
  start_workers(threads);
  if (threads > started) threads = started;
  int result = threads < 2 ? launch_serial(body, data, num_task)
                           : launch_parallel(body, data, num_task > 0 ? num_task : threads, threads);
  __atomic_store_n(&busy, 0, __ATOMIC_RELEASE);
  return result;
}

static const struct table own = {own_launch, own_use, own_size, own_resize};
static const struct table* pool = &own;

static void answer(TVMFFIAny* result, int64_t value) {
  memset(result, 0, sizeof *result);
  result->type_index = kTVMFFIInt;
  result->v_int64 = value;
}

static int table_address(void* self, const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {
  (void)self, (void)args, (void)count;
  answer(result, (int64_t)(intptr_t)&own);
  return 0;
}

/* The table of the process's pool, or null where no module has provided one yet. */
static const struct table* find_pool(void) {
  TVMFFIByteArray name = {POOL_NAME, sizeof POOL_NAME - 1};
  TVMFFIObjectHandle function = 0;
  TVMFFIAny result;
  memset(&result, 0, sizeof result);
  if (TVMFFIFunctionGetGlobal(&name, &function) || !function) return 0;
  int status = TVMFFIFunctionCall(function, 0, 0, &result);
  TVMFFIObjectDecRef(function);
  return status ? 0 : (const struct table*)(intptr_t)result.v_int64;
}

static void install(void) {
  TVMFFIByteArray name = {POOL_NAME, sizeof POOL_NAME - 1};
  const struct table* found = find_pool();
  if (!found) {
    TVMFFIObjectHandle function = 0;
    TVMFFIObjectHandle lost_race = 0;
    pin();
    if (!TVMFFIFunctionCreate(0, table_address, 0, &function)) {
      if (TVMFFIFunctionSetGlobal(&name, function, 0)) TVMFFIErrorMoveFromRaised(&lost_race);
      if (lost_race) TVMFFIObjectDecRef(lost_race);
      TVMFFIObjectDecRef(function);
    }
    found = find_pool();
  }
  pool = found ? found : &own;
  if (&__TVMBackendParallelLaunch) __TVMBackendParallelLaunch = (void*)pool->launch;
}

__attribute__((constructor)) static void install_at_load(void) { install(); }

EXPORT int tvm_rnn_pool_use(int threads) { return pool->use(threads); }

/* pool_install() -> 1 where this .so provides the pool, else 0. Needed once more after loading where libtvm_runtime is
   in the process: its loader overwrites the pointer that the constructor set. */
EXPORT int __tvm_ffi_pool_install(void* self, const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {
  (void)self, (void)args, (void)count;
  install();
  answer(result, pool == &own);
  return 0;
}

EXPORT int __tvm_ffi_pool_size(void* self, const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {
  (void)self, (void)args, (void)count;
  answer(result, pool->size());
  return 0;
}

EXPORT int __tvm_ffi_pool_resize(void* self, const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {
  (void)self;
  if (count != 1 || args[0].type_index != kTVMFFIInt || args[0].v_int64 < 1) {
    TVMFFIErrorSetRaisedFromCStr("ValueError", "pool_resize takes one integer, at least 1: the number of threads");
    return -1;
  }
  answer(result, pool->resize(clamp((long)args[0].v_int64)));
  return 0;
}

#ifdef __cplusplus
}
#endif
