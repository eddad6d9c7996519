"""The GPU tests, one process each, and the same under compute-sanitizer: two parts of gpu.py."""
import json
import os
import re
import subprocess
import tempfile
import time

from gpu_report import BUILD, ROOT, check, program, record

WHOLE_STEPS = "*Engine*:*Golden*"
# What other processes on the card would disturb.
MEASURE_MEMORY = "*MemoryStaysAsItIs*"
# What is left out under sanitizers, which change both: tests that measure time or memory.
UNSANITIZED = f"*SpeedIsPrinted*:{MEASURE_MEMORY}"
# Of a test's cases a sanitizer watches every so many: no divisor of how often their parameters come around. racecheck watches the
# library's kernels too, since those it leaves out end with illegal accesses; tests with products take long by that. So do samples,
# whose kernels count in shared memory.
EVERY = {"memcheck": "7", "racecheck": "13"}
EVERY_OF_SLOW = "49"
WITH_PRODUCTS = "CudaProducts*:GraphCounters.Products*:CudaLinear*:CudaAdapters*:CudaVocabularyLoss*:CudaQuantizedLinear*:CudaEndAttention*"
SLOW_IN_RACECHECK = f"{WITH_PRODUCTS}:CudaSample*"
SANITIZERS = {"memcheck": ["--kernel-name", "kns=snug"], "racecheck": ["--racecheck-num-workers", "2"]}

REPORTED = 99  # a sanitizer's exit code


def test_names(tests):
    """Of the tests that a --gtest_filter leaves."""
    done = program(os.path.join(BUILD, "tests/cuda_test"), f"--gtest_filter={tests}", "--gtest_list_tests")
    suite, names = "", []
    for line in done.stdout.splitlines():
        if line.startswith("  "):
            names.append(suite + line.split()[0])
        elif line.endswith(".") or ".  #" in line:
            suite = line.split()[0]
    return names


def label_of(test, prefix):
    return " ".join([test] + prefix[1:3])


def slowest_first(jobs):
    """By what they took when the results in this folder were written; what is new comes first."""
    took = {}
    with open(os.path.join(ROOT, "bench/h200.jsonl")) as f:
        for row in map(json.loads, f):
            if row["kind"] == "tests":
                took.update(row["passed"])
    return sorted(jobs, key=lambda job: -took.get(label_of(*job[:2]), float("inf")))


def run_processes(jobs):
    """Each job is (test, words before the program, environment) of a process with one GPU test; PROCESSES run at once, in
    this order. Returns what ended as (label, exit code, lines, seconds), and the labels of what did not in time."""
    deadline = time.time() + float(os.environ.get("SECONDS_OF_TESTS", 900))
    at_once = min(int(os.environ.get("PROCESSES", os.cpu_count())), len(jobs))
    # Threads that spin at barriers would take the processors from other processes.
    shared = {**os.environ, "OMP_NUM_THREADS": str(max(1, os.cpu_count() // at_once)), "OMP_WAIT_POLICY": "passive"}
    waiting = [(label_of(test, prefix), prefix + [os.path.join(BUILD, "tests/cuda_test"), f"--gtest_filter={test}"], {**shared, **env})
               for test, prefix, env in jobs]
    running, ended = [], []
    try:
        while (waiting or running) and time.time() < deadline:
            while waiting and len(running) < at_once:
                label, words, env = waiting.pop(0)
                log = tempfile.TemporaryFile("w+", errors="replace")
                # A session of its own: a sanitizer's child has to end with it.
                process = subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT, env=env, start_new_session=True)
                running.append((label, process, log, time.time()))
            for job in [job for job in running if job[1].poll() is not None]:
                running.remove(job)
                label, process, log, start = job
                log.seek(0)
                ended.append((label, process.returncode, log.read().splitlines(), time.time() - start))
            time.sleep(0.05)
    finally:
        for _, process, _, _ in running:
            os.killpg(process.pid, 9)
            process.wait()
    return ended, [job[0] for job in running + waiting]


def sees_our_kernels(lines):
    """Whether what a sanitizer reports names a kernel of ours, or no kernel: racecheck reports some of cuBLASLt's too."""
    reported = [line for line in lines if line.startswith("=========") and re.search(" access at |Invalid|Error|Warning|Program hit", line)]
    return not reported or any("snug::" in line or " access at " not in line for line in reported)


def run_tests(name, jobs):
    """Of run_processes(). The one test must have run and passed, and a sanitizer, where one watched, must say that there was nothing."""
    if not jobs:
        raise RuntimeError(f"{name}: no such tests")
    begun = time.time()
    ended, cut_off = run_processes(jobs)
    passed, failed, summaries, of_library = {}, {}, {}, []
    for label, code, lines, seconds in ended:
        summary = [line.strip("= ") for line in lines if "SUMMARY" in line]
        for line in summary:
            summaries[line] = summaries.get(line, 0) + 1
        clean = all(re.search(r"SUMMARY: 0 (errors|hazards displayed \(0 errors, 0 warnings\))", line) for line in summary)
        if not clean and code == REPORTED and not sees_our_kernels(lines):
            of_library.append(label)
            clean, code = True, 0
        watched = len(summary) == ("--tool" in label) or any("before first instrumented API call" in line for line in lines)
        if code == 0 and clean and watched and any("[  PASSED  ] 1 test." in line for line in lines):
            passed[label] = round(seconds, 1)
        else:
            failed[label] = lines
    slowest = ", ".join(f"{label} {seconds:.0f} s" for label, seconds in sorted(passed.items(), key=lambda item: -item[1])[:6])
    print(f"{name}: {len(passed)} of {len(jobs)} passed in {time.time() - begun:.0f} s; slowest {slowest}", flush=True)
    for line, count in summaries.items():
        print(f"  {count} times: {line}")
    if of_library:
        print("  reported in the library's kernels only:", ", ".join(of_library))
    for label, lines in failed.items():
        reasons = [i for i, line in enumerate(lines) if ": Failure" in line or re.match("========= (Invalid|Error|Warning|Program hit)", line)]
        print(f"  failed: {label}", *[line for i in reasons[:3] for line in lines[i:i + 8]], *lines[-6:], sep="\n    ", flush=True)
    if cut_off:
        print("  not done in time:", ", ".join(cut_off), flush=True)
    record("tests", name=name, passed=passed, summaries=summaries, of_library=of_library, failed={label: lines[:400] for label, lines in failed.items()}, cut_off=cut_off)
    check(not failed and not cut_off, name)


def tests():
    alone, others = test_names(MEASURE_MEMORY), test_names(f"*-{MEASURE_MEMORY}")
    run_tests("GPU unit tests", slowest_first([(test, [], {}) for test in others]))
    run_tests("GPU unit tests that measure memory", [(test, [], {}) for test in alone])


def sanitize():
    """racecheck over the kernels' tests, memcheck over these and whole steps, all in a share of their cases."""
    tools = os.environ.get("TOOLS", "racecheck memcheck").split()
    chosen = test_names(f"{os.environ.get('SANITIZED', '*')}-{UNSANITIZED}")
    whole_steps, with_products, slow = (set(test_names(tests)) for tests in (WHOLE_STEPS, WITH_PRODUCTS, SLOW_IN_RACECHECK))
    with tempfile.TemporaryDirectory() as cache:
        # How products are done best is not timed under a sanitizer.
        timed = [(test, [], {"SNUG_TEST_CACHE": cache, "SNUG_EVERY": EVERY["memcheck"]}) for test in chosen if test in with_products]
        if timed:
            run_tests("products timed", timed)
        # Whole steps come last: theirs are known by then.
        timing = subprocess.Popen([os.path.join(BUILD, "tests/cuda_test"), f"--gtest_filter={WHOLE_STEPS}"], stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL, env={**os.environ, "SNUG_TEST_CACHE": cache})
        kernels, steps = [], []
        for tool, test in ((tool, test) for tool in tools for test in chosen):
            if tool == "racecheck" and test in whole_steps:
                continue
            every = EVERY_OF_SLOW if tool == "racecheck" and test in slow else "1" if test in whole_steps else EVERY[tool]
            # Ports of their own: by default all would look for one among the same ten.
            port = str(20000 + 16 * (len(kernels) + len(steps)))
            prefix = ["compute-sanitizer", "--tool", tool, "--error-exitcode", str(REPORTED), "--require-cuda-init", "no", "--port", port, *SANITIZERS[tool]]
            (steps if test in whole_steps else kernels).append((test, prefix, {"SNUG_EVERY": every, "SNUG_TEST_CACHE": cache}))
        run_tests(" and ".join(tools), slowest_first(kernels) + slowest_first(steps))
        timing.kill()
        timing.wait()
