"""The thread pool of compiled modules, driven through a hand-written module.

In: tiny_module.py (a module whose `probe` function launches) and pool_race.c (a program for the thread sanitizer).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny_module import Tiny, compile_elf, include_flags

import tvm_rnn
from tvm_rnn.locations import PACKAGE
from tvm_rnn.runtime import runtime

pytestmark = pytest.mark.usefixtures("children_without_torch")


class Interrupted(Exception):
    """What a signal's handler raises."""


POOL_C = PACKAGE / "cpu" / "c" / "pool.c"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Tiny().write(tmp_path_factory.mktemp("pool") / "first.so")


@pytest.fixture
def library(path: Path) -> Iterator[Any]:
    """The functions of a loaded module; the process's pool has four threads meanwhile."""
    functions = runtime.load(path)._library
    size = functions.pool_size()
    functions.pool_resize(4)
    yield functions
    functions.pool_resize(size)


def probe(library: Any, threads: int, tasks: int = 0, fail: int = -1, nested: int = 0, us: int = 0) -> tuple[int, int]:
    """Run a parallel loop; how many tasks it had, and on how many different threads they ran."""
    return divmod(library.probe(threads, tasks, fail, nested, us), 1000)


def run_python(code: str, *arguments: object, **environment: str) -> str:
    """Run code in a fresh process in which `module` is the module whose path is the first argument."""
    start = (
        "import sys, os\nfrom tvm_rnn import runtime\nmodule = runtime.load(sys.argv[1])\nlibrary = module._library\n"
    )
    clean = {k: v for k, v in os.environ.items() if k not in ("TVM_RNN_NUM_THREADS", "OMP_NUM_THREADS")}
    here = os.pathsep.join([os.environ["PYTHONPATH"], str(Path(tvm_rnn.__file__).parent.parent)])
    command = [sys.executable, "-c", start + textwrap.dedent(code), *map(str, arguments)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=100, env={**clean, "PYTHONPATH": here, **environment}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def test_a_launch_makes_as_many_tasks_as_the_limit_says(library: Any) -> None:
    assert [probe(library, threads)[0] for threads in (1, 2, 3, 4)] == [1, 2, 3, 4]


def test_the_limit_is_at_most_the_size_of_the_pool(library: Any) -> None:
    library.pool_resize(2)
    assert probe(library, 100)[0] == 2


def test_tasks_run_on_different_threads(library: Any) -> None:
    # A worker that sleeps may come too late for its task, which then runs on the launching thread: so several attempts.
    assert any(probe(library, 2, us=2000)[1] == 2 for _ in range(1000))


@pytest.mark.parametrize("tasks", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("threads", [1, 2, 3, 4])
def test_every_task_runs_once_whatever_the_number_of_threads(library: Any, threads: int, tasks: int) -> None:
    for _ in range(200):
        assert probe(library, threads, tasks)[0] == tasks


def test_many_launches_with_pauses_between_them(library: Any) -> None:
    """Workers are asleep, about to sleep, or awake when the next launch comes."""
    for pause in (0, 1e-6, 2e-5, 4e-5, 5e-5, 1e-4):
        for _ in range(300):
            assert probe(library, 4)[0] == 4
            end = time.perf_counter() + pause
            while time.perf_counter() < end:
                pass


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("fail", [0, 1, 2])
def test_an_error_of_any_task_reaches_the_caller(library: Any, threads: int, fail: int) -> None:
    for _ in range(50):
        with pytest.raises(RuntimeError, match="task failed as told"):
            probe(library, threads, tasks=3, fail=fail)
    assert probe(library, threads, tasks=3)[0] == 3


@pytest.mark.parametrize("threads", [1, 3])
def test_a_signal_whose_handler_raises_ends_a_launch(library: Any, threads: int) -> None:
    """Ctrl-C, say. Tasks of 2 ms, of which 1000 would take two seconds of each thread."""

    def stop(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, stop)
    try:
        with pytest.raises(Interrupted):
            signal.setitimer(signal.ITIMER_REAL, 0.02)
            probe(library, threads, tasks=1000, us=2000)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert 0 < library.probe_ran() < 500
    assert probe(library, threads, tasks=20)[0] == library.probe_ran() == 20


def test_a_signal_whose_handler_returns_changes_nothing(library: Any) -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, _: seen.append(library.probe_ran()))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        assert probe(library, 1, tasks=150, us=2000)[0] == 150
    finally:
        signal.signal(signal.SIGALRM, before)
    assert seen == [0]  # while the launch was under way


def test_a_nested_launch_is_serial(library: Any) -> None:
    for _ in range(50):
        assert probe(library, 4, nested=1)[0] == 4


def test_launches_from_several_threads_at_once(library: Any) -> None:
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(500):
                tasks, _ = probe(library, 3, us=5)
                assert tasks in (1, 3)  # 1: another thread had the pool
                assert probe(library, 3, tasks=5)[0] == 5
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_pool_resize_refuses_what_is_not_a_number_of_threads(library: Any) -> None:
    for wrong in (0, -1, 1.5, "2"):
        with pytest.raises(ValueError, match="pool_resize takes one integer, at least 1"):
            library.pool_resize(wrong)
    with pytest.raises(ValueError, match="pool_resize takes one integer"):
        library.pool_resize()
    assert library.pool_resize(10**9) == 256


MASK = str(min(256, len(os.sched_getaffinity(0))))


@pytest.mark.broad_after(1)
@pytest.mark.parametrize(
    ("environment", "size"),
    [
        ({}, MASK),
        ({"OMP_NUM_THREADS": "5", "TVM_RNN_NUM_THREADS": "3"}, "3"),
        ({"OMP_NUM_THREADS": "5,2"}, "5"),
        ({"TVM_RNN_NUM_THREADS": "many"}, MASK),
    ],
)
@pytest.mark.broad
def test_the_size_comes_from_the_environment_or_the_affinity_mask(
    path: Path, environment: dict[str, str], size: str
) -> None:
    assert run_python("print(library.pool_size())", path, **environment) == size


@pytest.mark.broad
def test_a_mask_of_one_cpu_gives_a_pool_of_one(path: Path) -> None:
    code = "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\nprint(library.pool_size())"
    assert run_python(code, path) == "1"


def test_fork_while_the_pool_is_busy(path: Path) -> None:
    """The child has none of the parent's threads: it starts its own, and the parent's go on."""
    code = """
    import threading
    library.pool_resize(3)
    stop = threading.Event()
    def work():
        while not stop.is_set():
            library.probe(3, 0, -1, 0, 20)
    thread = threading.Thread(target=work)
    thread.start()
    for _ in range(20):
        child = os.fork()
        if not child:
            ok = all(library.probe(3, 3, -1, 0, 0) // 1000 == 3 for _ in range(100))
            ok &= any(library.probe(3, 3, -1, 0, 2000) % 1000 > 1 for _ in range(1000))
            os._exit(0 if ok else 1)
        assert os.waitpid(child, 0)[1] == 0
    stop.set()
    thread.join()
    assert library.probe(3, 3, -1, 0, 0) // 1000 == 3
    print("done")
    """
    assert run_python(code, path) == "done"


@pytest.mark.broad
def test_one_pool_for_all_modules_of_a_process(path: Path, tmp_path: Path) -> None:
    second = Tiny(layers=2).write(tmp_path / "second.so")
    code = """
    import gc
    threads = lambda: len(os.listdir("/proc/self/task"))
    other = runtime.load(sys.argv[2])
    assert (library.pool_install(), other._library.pool_install()) == (1, 0)
    library.pool_resize(3)
    assert other._library.pool_size() == 3
    before = threads()
    for _ in range(10):
        assert library.probe(3, 0, -1, 0, 0) // 1000 == other._library.probe(3, 0, -1, 0, 0) // 1000 == 3
    assert threads() - before == 2, threads() - before
    print("done")
    """
    assert run_python(code, path, second) == "done"


@pytest.mark.broad
def test_the_pool_outlives_the_module_that_provides_it(path: Path, tmp_path: Path) -> None:
    second = Tiny(layers=2).write(tmp_path / "second.so")
    code = """
    import gc
    mapped = lambda path: os.path.realpath(path) in open("/proc/self/maps").read()
    other = runtime.load(sys.argv[2])
    library.pool_resize(3)
    assert other._library.probe(3, 0, -1, 0, 0) // 1000 == 3
    del module, library
    gc.collect()
    assert mapped(sys.argv[1])  # pinned: it is the provider
    for _ in range(100):
        assert other._library.probe(3, 0, -1, 0, 0) // 1000 == 3
    module = runtime.load(sys.argv[1])
    assert module._library.pool_install() == 1 and module._library.pool_size() == 3
    del other
    gc.collect()
    assert not any(line.strip().endswith(sys.argv[2]) and " r-xp " in line for line in open("/proc/self/maps"))
    print("done")
    """
    assert run_python(code, path, second) == "done"


@pytest.mark.broad
def test_idle_workers_sleep_until_they_are_woken(path: Path) -> None:
    """Threads that sleep do not run: the operating system never switches to them."""
    code = """
    import time
    library.pool_resize(8)
    for _ in range(200):
        library.probe(8, 0, -1, 0, 10)
    workers = {int(task) for task in os.listdir("/proc/self/task")} - {os.getpid()}
    def switches():
        lines = [line for task in workers for line in open(f"/proc/self/task/{task}/status")]
        asleep = [line.split()[1] == "S" for line in lines if line.startswith("State")]
        return all(asleep), sum(int(line.split()[1]) for line in lines if "voluntary_ctxt_switches" in line)
    before, now = None, switches()
    while not now[0] or now != before:  # those that have not lain down yet
        time.sleep(0.1)
        before, now = now, switches()
    time.sleep(0.5)
    print(len(workers) >= 7, switches() == now)
    """
    assert run_python(code, path) == "True True"


@pytest.mark.broad
def test_workers_leave_signals_to_the_main_thread(path: Path) -> None:
    code = """
    import signal, time
    got = []
    signal.signal(signal.SIGUSR1, lambda number, frame: got.append(number))
    library.pool_resize(4)
    library.probe(4, 0, -1, 0, 100)
    masks = [line.split()[1] for task in os.listdir("/proc/self/task") if int(task) != os.getpid()
             for line in open(f"/proc/self/task/{task}/status") if line.startswith("SigBlk")]
    bit = 1 << (signal.SIGUSR1 - 1)
    assert sum(bool(int(mask, 16) & bit) for mask in masks) == 3, masks
    os.kill(os.getpid(), signal.SIGUSR1)
    assert got == [signal.SIGUSR1]
    print("done")
    """
    assert run_python(code, path) == "done"


def test_install_again_after_another_runtime_has_overwritten_the_pointer(path: Path, tmp_path: Path) -> None:
    """As libtvm_runtime does at load: the module must use the pool once more after pool_install."""
    source = tmp_path / "overwrite.c"
    source.write_text(
        "#include <string.h>\n#include <tvm/ffi/c_api.h>\nextern void* __TVMBackendParallelLaunch;\n"
        "int __tvm_ffi_overwrite(void* s, const TVMFFIAny* a, int32_t n, TVMFFIAny* r) {\n"
        "  __TVMBackendParallelLaunch = 0; memset(r, 0, sizeof *r); return 0; }\n"
    )
    sizes = ["-DREAL=float", "-DLAYERS=1", "-DDIRECTIONS=1", "-DEXTRA=0", "-DH=5"]
    code = compile_elf([Path(__file__).with_name("tiny_cell.c"), POOL_C, source], *sizes)
    from tvm_rnn.module_file.manifest import write_container

    write_container(code, Tiny().manifest(), Tiny().weights(), tmp_path / "m.so")
    library = runtime.load(tmp_path / "m.so")._library
    library.overwrite()
    library.pool_install()
    assert probe(library, 1)[0] == 1


def test_a_module_without_parallel_loops_links_and_loads(tmp_path: Path) -> None:
    source = tmp_path / "serial.c"
    source.write_text(
        "#include <string.h>\n#include <tvm/ffi/c_api.h>\n"
        "int __tvm_ffi_sequence(void* s, const TVMFFIAny* a, int32_t n, TVMFFIAny* r) { return 0; }\n"
    )
    (tmp_path / "serial.so").write_bytes(compile_elf([source, POOL_C]))
    import tvm_ffi

    library = tvm_ffi.load_module(str(tmp_path / "serial.so"), keep_module_alive=False)
    assert library.pool_install() in (0, 1)
    assert library.pool_size() >= 1


@pytest.mark.parametrize("command", [["gcc"], ["g++", "-x", "c"], ["gcc", "-std=gnu11", "-O3", "-fno-plt"]])
def test_the_source_compiles_without_warnings(command: list[str], tmp_path: Path) -> None:
    flags = ["-Wall", "-Wextra", "-Werror", "-O2", "-fPIC", "-c", str(POOL_C), "-o", str(tmp_path / "pool.o")]
    subprocess.run([*command, *include_flags(), *flags], check=True)


@pytest.mark.parametrize(("callers", "launches"), [(2, 3000), pytest.param(32, 1000, marks=pytest.mark.slow)])
def test_the_pool_is_free_of_data_races(callers: int, launches: int, tmp_path: Path) -> None:
    """Under gcc's thread sanitizer, from C: threads launch, workers sleep and wake, tasks fail, the pool grows."""
    main = Path(__file__).with_name("pool_race.c")
    import tvm_ffi

    folder = Path(tvm_ffi.libinfo.find_libtvm_ffi()).parent
    program = tmp_path / "race"
    flags = ["-g", "-O1", "-fsanitize=thread", *include_flags(), str(main), str(POOL_C), "-o", str(program)]
    libraries = [f"-L{folder}", f"-Wl,-rpath,{folder}", "-ltvm_ffi", "-lpthread", "-ldl"]
    built = subprocess.run(["gcc", *flags, *libraries], capture_output=True, text=True)
    if built.returncode and "tsan" in built.stderr:
        pytest.skip("gcc's thread sanitizer is not installed")
    assert built.returncode == 0, built.stderr
    done = subprocess.run([program, str(callers), str(launches)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "WARNING" not in done.stderr, done.stdout + done.stderr


def test_results_do_not_depend_on_the_number_of_threads(path: Path) -> None:
    import numpy as np

    module = runtime.load(path)
    x = np.random.default_rng(0).standard_normal((20, 33, 5)).astype("float32")
    module.threads = 1
    y, _ = module(x)
    size = module._library.pool_size()
    for threads in (2, 3, 5):
        module.threads = threads
        assert np.array_equal(module(x)[0], y)
    module._library.pool_resize(size)
