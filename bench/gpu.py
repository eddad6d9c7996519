"""Everything that only a GPU can show, from what `make cuda` built: kernel and engine tests, sanitizers, planned against
measured memory, the speed table beside PyTorch and transformers where this Python has them, and a whole fine-tuning run.
Needs Python alone. Prints Markdown; with --out FILE also one JSON line per result.

    python3 bench/gpu.py [PART ...]           all of them without arguments; --help lists them
    SST2=folder with train.tsv and dev.tsv: the data of end-to-end, budgets and sst2-techniques, which are left out without it
    MINILM=folder of the model that sst2-techniques trains
    PROCESSES=of unit tests at once, one test each [all processors]; TOOLS=of the sanitizers these [racecheck memcheck];
    SANITIZED=only tests of these patterns (A*:B*); SECONDS_OF_TESTS=when a group of them is cut off [900]"""
import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from gpu_report import BUILD, GIB, ROOT, check, failures, program, record, results
from gpu_tests import sanitize, tests

# Milliseconds a step must take at most on an NVIDIA H200, and what we aim for.
SPEED = {"8x128": (3.5, 2.5), "32x128": (6.5, 5.0), "sst2": (3.5, 2.5), "32x512": (20, 16.5), "large:16x512": (33, 27)}
LANGUAGE = {"gpt2-medium:8x1024": (42, 36), "gpt2-medium:1x1024": (11, 9)}
# GiB the smallest run may take: without and with memory of the host.
SMALLEST = {"32x512": (2.7, 1.2), "large:32x512": (6.2, 2.2), "gpt2-medium:32x1024": (6.3, 2.3), "gpt2-xl:32x1024": (None, 8)}
TECHNIQUES = {"plain": {}, "state on the host": {"OFFLOAD": "state"}, "state and gradients on the host": {"OFFLOAD": "gradients"},
              "all recomputed": {"RECOMPUTE": "all"}, "all recomputed, what layers keep on the host": {"OFFLOAD": "activations"},
              "state, gradients and what layers keep on the host": {"OFFLOAD": "gradients,activations"},
              "8-bit AdamW": {"OPTIM": "adamw_8bit"}, "AdamW in bf16": {"OPTIM": "adamw_bf16"}, "Adafactor": {"OPTIM": "adafactor"},
              "SGD": {"OPTIM": "sgd"}, "LoRA, rank 8": {"LORA": 8}, "embeddings frozen": {"FREEZE": "embeddings"}}


def step_bench(case, memory=None, steps=50, precision="bf16", capacity=None, **techniques):
    """techniques: OFFLOAD, OPTIM and so on, as step_bench's environment has them."""
    env = dict(DEVICE="cuda", STEPS=str(steps), PRECISION=precision, **{name: str(value) for name, value in techniques.items()})
    if capacity is not None:
        env["CAPACITY"] = str(capacity)
    if memory is not None:
        env["MEMORY"] = str(memory)
    done = program(os.path.join(BUILD, "bin/step_bench"), case, env=env)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or not lines:
        raise RuntimeError(f"step_bench {case}: {done.stderr.strip()[-500:]}")
    return json.loads(lines[-1])


def least_budget(case, **techniques):
    """In bytes: half a GiB is too little for any case, and says at once what would be enough."""
    return step_bench(case, GIB // 2, **techniques)["minimum_bytes"]


def memory():
    """Random configurations from the minimum up: what the driver counts against the plan."""
    rng = random.Random(4)
    print("\n| case | budget MiB | predicted MiB | measured MiB | off by | micro-batch | recomputed | grown |\n|---|---|---|---|---|---|---|---|")
    for number in range(int(os.environ.get("CONFIGURATIONS", 25))):
        model = "large:" if number % 3 == 2 else ""
        case = f"{model}{rng.choice([4, 8, 16, 32])}x{rng.choice([32, 64, 128, 256, 512])}"
        least = least_budget(case)
        budget = least + int(rng.choice([0, 0, 0.1, 0.3, 1]) * rng.uniform(0.2, 4) * GIB)
        row = step_bench(case, budget, steps=3)
        predicted, measured = row["predicted_bytes"], row["measured_bytes"]
        print(f"| {case} | {budget / 2**20:.0f} | {predicted / 2**20:.0f} | {measured / 2**20:.0f} | {measured / predicted - 1:+.2%} "
              f"| {row['micro_batch_tokens']} | {row['recompute']} | {row['grown_since_first_step']} |", flush=True)
        record("memory", **row)
        check(measured <= budget, f"{case}: {measured} bytes used of a budget of {budget}")
        check(abs(measured / predicted - 1) <= 0.01, f"{case}: predicted {predicted}, measured {measured}")
        check(row["grown_since_first_step"] == 0, f"{case}: memory grew after the first step")


def peers(case):
    done = program(os.environ.get("PYTHON", sys.executable), os.path.join(ROOT, "bench/peer_gpu.py"), case, timeout=300)
    return {row["program"]: row["ms"] for row in map(json.loads, (l for l in done.stdout.splitlines() if l.startswith('{"')))}


def speed(cases=SPEED):
    print("\n| training step, bf16, dropout 0.1 | snug ms | must reach | aim | PyTorch ms | HF Trainer ms | torch.compile ms | times faster than Trainer |")
    print("|---|---|---|---|---|---|---|---|")
    rows = {case: step_bench(case) for case in cases}  # all before the peers, which warm the card
    for case, (must, aim) in cases.items():
        row = rows[case]
        other = peers(case) if os.environ.get("PEERS", "1") == "1" else {}
        shown = [f"{other[name]:.1f}" if name in other else "–" for name in ("loop", "trainer", "compile")]
        ratio = f"{other['trainer'] / row['ms']:.1f}" if "trainer" in other else "–"
        print(f"| {case} | {row['ms']:.2f} | {must} | {aim} | {' | '.join(shown)} | {ratio} |", flush=True)
        record("speed", must=must, aim=aim, peers=other, **row)
        check(row["ms"] <= must, f"{case}: {row['ms']:.2f} ms, must reach {must}")


def watched_steps(library, steps):
    """For each step of CASES (case, rows): what a library that the driver loads writes about it."""
    path = os.path.join(BUILD, f"lib/lib{library}.so")
    if not os.path.exists(path):
        print("left out: built without CUPTI")
        return
    for case in os.environ.get("CASES", "32x512 large:16x512").split():
        step_bench(case, steps=2)  # chooses and stores the products' algorithms
        with tempfile.NamedTemporaryFile() as file:
            env = {"DEVICE": "cuda", "STEPS": str(steps), "PRECISION": "bf16", "CUDA_INJECTION64_PATH": path, library.upper(): file.name}
            done = program(os.path.join(BUILD, "bin/step_bench"), case, env=env)
            with open(file.name) as f:
                rows = [line.rstrip("\n").split("\t") for line in f]
        if done.returncode != 0 or not rows:
            raise RuntimeError(f"{case}: {done.stderr.strip()[-300:]}")
        yield case, rows


def kernels():
    """Where the time of a step goes: each kernel's, and what passes before it starts; CASES sets the steps."""
    for case, rows in watched_steps("kernel_trace", 6):
        spans = sorted((int(begin), int(length), name) for name, begin, length in rows)
        updates = [i for i, span in enumerate(spans) if "adamw_kernel" in span[2]]
        if len(updates) < 3:
            raise RuntimeError(f"{case}: no whole step in the trace")
        step = spans[updates[-3] + 1:updates[-2] + 1]
        names = demangled([name for _, _, name in step])
        table, behind = {}, step[0][0]
        for begin, length, name in step:
            row = table.setdefault(names[name], [0, 0, 0])
            for i, add in enumerate((1, length, max(begin - behind, 0))):
                row[i] += add
            behind = begin + length
        whole, busy = (behind - step[0][0]) / 1e6, sum(row[1] for row in table.values()) / 1e6
        print(f"\n{case}: {whole:.2f} ms, of which {busy:.2f} ms in kernels\n\n| us | times | us each | us before it | kernel |\n|---|---|---|---|---|")
        for name, (times, length, gap) in sorted(table.items(), key=lambda row: -row[1][1]):
            if length + gap > 0.001 * (behind - step[0][0]):
                print(f"| {length / 1e3:.0f} | {times} | {length / times / 1e3:.1f} | {gap / 1e3:.0f} | {name} |", flush=True)
        record("kernels", case=case, ms=whole, busy_ms=busy, kernels=table)


def energy():
    """What each kind of kernel takes alone, over and over: at the power limit a step takes the energy it needs. CASES sets the steps."""
    for case, rows in watched_steps("kernel_energy", 200):
        names = demangled([row[0] for row in rows])
        table = sorted(((float(mj), float(us), int(times), names[name]) for name, times, us, mj in rows), reverse=True)
        print(f"\n{case}\n\n| mJ a step | us a step | W | times | kernel |\n|---|---|---|---|---|")
        for mj, us, times, name in table:
            if mj > 0.002 * table[0][0]:
                print(f"| {mj:.0f} | {us:.0f} | {mj / us * 1e3:.0f} | {times} | {name} |", flush=True)
        record("energy", case=case, kernels=[dict(mj=mj, us=us, times=times, name=name) for mj, us, times, name in table])


def demangled(names):
    """Names without namespaces and arguments, by c++filt where it is there."""
    try:
        plain = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True).stdout.split("\n")
    except OSError:
        plain = names
    for noise in "void ", "snug::cuda::", "(anonymous namespace)::", "snug::":
        plain = [name.replace(noise, "") for name in plain]
    return {name: short.split("(")[0][:90] for name, short in zip(names, plain)}


def language():
    """GPT-2 355M: speed, and the memory of a step of 8 x 1024 tokens in micro-batches of 1024, from 8 GiB down."""
    speed(LANGUAGE)
    print("\n| GPT-2 355M, 8 x 1024 by 1024 | budget MiB | predicted MiB | measured MiB | ms | recomputed | logits at once | weights converted |")
    print("|---|---|---|---|---|---|---|---|")
    case = "gpt2-medium:8x1024"
    least = step_bench(case, GIB, steps=1, capacity=1024, OFFLOAD="none")["minimum_bytes"]
    for name, budget in ("8 GiB", 8 * GIB), ("least", least):
        row = step_bench(case, budget, steps=10, capacity=1024, OFFLOAD="none")
        print(f"| {name} | {budget / 2**20:.0f} | {row['predicted_bytes'] / 2**20:.0f} | {row['measured_bytes'] / 2**20:.0f} | {row['ms']:.1f} "
              f"| {row['recompute']} | {row['head_chunk']} | {row['converts_weights']} |", flush=True)
        record("language-memory", name=name, **row)
        check(row["measured_bytes"] <= budget, f"{name}: {row['measured_bytes']} bytes used of {budget}")
        check(abs(row["measured_bytes"] / row["predicted_bytes"] - 1) <= 0.01, f"{name}: predicted {row['predicted_bytes']}, measured {row['measured_bytes']}")
    check(least <= 6.3 * GIB, f"the least budget is {least}, must be at most 6.3 GiB")


def generate():
    """Greedy writing with a fresh GPT-2 355M, beside transformers. The tokenizer is a small one: ids beyond it have no text."""
    folder = tempfile.mkdtemp()
    model, text = os.path.join(folder, "model"), os.path.join(folder, "text.txt")
    with open(text, "w") as f:
        f.write("".join(f"the cat number {i} sat on the mat\n" for i in range(5000)))
    snug, python = os.path.join(BUILD, "bin/snug"), os.environ.get("PYTHON", sys.executable)
    done = program(snug, "init", "--model-type", "gpt2", "--train", text, "--vocab-size", 1000, "--hidden-size", 64, "--num-attention-heads", 1,
                   "--num-hidden-layers", 1, "--output-dir", model)
    check(done.returncode == 0, f"snug init: {done.stderr[-300:]}")
    peer = os.path.join(ROOT, "bench/peer_gpu.py")
    done = program(python, peer, "make-gpt2-medium", model)
    check(done.returncode == 0, f"make-gpt2-medium: {done.stderr[-300:]}")
    other = program(python, peer, "generate", model, timeout=300)
    peers = {row["case"]: row["tokens_per_second"] for row in map(json.loads, (l for l in other.stdout.splitlines() if l.startswith('{"')))}
    print("\n| GPT-2 355M, greedy, bf16 | snug tokens/s | must reach | transformers |\n|---|---|---|---|")
    for batch, must in (1, 1000), (32, 20000):
        done = program(snug, "generate", "--model", model, "--prompt", "the cat number 7 sat on the", "--num-return", batch, "--greedy",
                       "--ignore-eos", "--max-new-tokens", 512, "--json")
        check(done.returncode == 0, f"generate {batch}: {done.stderr[-500:]}")
        if done.returncode != 0:
            continue
        row = json.loads(done.stdout)
        row.pop("texts")
        print(f"| batch {batch} | {row['tokens_per_second']:.0f} | {must} | {peers.get(f'generate {batch}', '–')} |", flush=True)
        record("generate", batch=batch, must=must, transformers=peers.get(f"generate {batch}"), **row)
        check(row["tokens_per_second"] >= must, f"generate {batch}: {row['tokens_per_second']:.0f} tokens/s, must reach {must}")
        check(row["measured_peak_bytes"] <= row["predicted_peak_bytes"] * 1.01, f"generate {batch}: memory above the plan")
    shutil.rmtree(folder, ignore_errors=True)


def frontier():
    print("\n| case | budget MiB | measured MiB | ms | micro-batch | recomputed layers |\n|---|---|---|---|---|---|")
    for case in "32x512", "large:32x512":
        least = least_budget(case)
        roomy = step_bench(case, steps=10)
        most = roomy["predicted_bytes"]
        for share in 0, 0.02, 0.05, 0.1, 0.2, 0.4, 0.7, 1:
            budget = int(least + share * (most - least))
            row = step_bench(case, budget, steps=3 if share < 0.02 else 10)
            print(f"| {case} | {budget / 2**20:.0f} | {row['measured_bytes'] / 2**20:.0f} | {row['ms']:.1f} | {row['micro_batch_tokens']} "
                  f"| {row['recompute']} |", flush=True)
            record("frontier", **row)


def smallest():
    """The least budgets with and without memory of the host, each run and measured; and what recomputing everything costs."""
    print("\n| case | offload | least MiB | measured MiB | must GiB | host GiB | ms | micro-batch |\n|---|---|---|---|---|---|---|---|")
    for case in os.environ.get("CASES", " ".join(SMALLEST)).split():
        musts = SMALLEST[case]
        for offload, must in zip(("none", "gradients,activations"), musts):
            if must is None:
                continue
            least = least_budget(case, OFFLOAD=offload)
            row = step_bench(case, least, steps=3 if offload == "none" else 2, OFFLOAD=offload)
            print(f"| {case} | {offload} | {least / 2**20:.0f} | {row['measured_bytes'] / 2**20:.0f} | {must} | {row['host_bytes'] / GIB:.1f} | {row['ms']:.0f} "
                  f"| {row['micro_batch_tokens']} |", flush=True)
            record("smallest", must_gib=must, **row)
            check(row["measured_bytes"] <= least, f"{case}, offload {offload}: measured more than the least budget")
            check(row["measured_bytes"] <= must * GIB, f"{case}, offload {offload}: {row['measured_bytes'] / GIB:.2f} GiB, must be {must}")
            check(row["grown_since_first_step"] == 0, f"{case}, offload {offload}: memory grew after the first step")
    xl = step_bench("gpt2-xl:32x1024", 8 * GIB, steps=2)
    print(f"gpt2-xl in 8 GiB: {xl['ms']:.0f} ms a step, measured {xl['measured_bytes'] / GIB:.2f} GiB, micro-batch {xl['micro_batch_tokens']}, {xl['recompute']}")
    record("smallest", must_gib=8, **xl)
    check(xl["measured_bytes"] <= 8 * GIB, "gpt2-xl takes more than 8 GiB")
    for case in "32x512", "gpt2-medium:8x1024":
        plain, again = step_bench(case, steps=20), step_bench(case, steps=20, RECOMPUTE="all")
        share = again["ms"] / plain["ms"] - 1
        print(f"{case}: recomputing everything costs {share:.0%}, {plain['measured_bytes'] / 2**20:.0f} -> {again['measured_bytes'] / 2**20:.0f} MiB")
        record("recompute-all", share=share, **again)
        check(share <= 0.35, f"{case}: recomputing everything costs {share:.0%}")


def techniques():
    """Optimizers, adapters and frozen layers on one model: memory and time of each."""
    print("\n| technique | measured MiB | planned MiB | ms |\n|---|---|---|---|")
    for name, flags in TECHNIQUES.items():
        row = step_bench("gpt2-medium:8x1024", steps=10, **flags)
        print(f"| {name} | {row['measured_bytes'] / 2**20:.0f} | {row['predicted_bytes'] / 2**20:.0f} | {row['ms']:.1f} |", flush=True)
        record("technique", name=name, **row)
        check(row["measured_bytes"] <= row["predicted_bytes"] * 1.01, f"{name}: memory above the plan")


def monotone():
    """More budget is never slower: medians of 18 steps."""
    print("\n| case | budget MiB | median ms | micro-batch | recomputed |\n|---|---|---|---|---|")
    for case in os.environ.get("CASES", "32x512 gpt2-medium:8x1024").split():
        least = least_budget(case, OFFLOAD="none")
        most = step_bench(case, steps=2)["predicted_bytes"]
        fastest = None
        for share in 0, 0.03, 0.1, 0.3, 0.6, 1:
            row = step_bench(case, int(least + share * (most - least)), steps=18)
            print(f"| {case} | {row['budget_bytes'] / 2**20:.0f} | {row['ms']:.1f} | {row['micro_batch_tokens']} | {row['recompute']} |", flush=True)
            record("monotone", **row)
            if fastest is not None:
                check(row["ms"] <= 1.05 * fastest, f"{case}: {row['ms']:.1f} ms with more memory, {fastest:.1f} with less")
            fastest = min(fastest or row["ms"], row["ms"])


def promises():
    """Random techniques and budgets, and all pairs of techniques, on the GPU; FUZZ_RUNS sets how many random ones."""
    script = os.path.join(ROOT, "tests/e2e/combinations_test.py")
    env = {"SNUG": os.path.join(BUILD, "bin/snug"), "SNUG_DEVICE": "cuda", "SNUG_FUZZ_RUNS": os.environ.get("FUZZ_RUNS", "60")}
    for name in "BudgetFuzz", "Combinations":
        start = time.time()
        done = program(sys.executable, script, name, env=env, timeout=1200)
        print(f"{name}: {time.time() - start:.0f} s\n{done.stderr[-1500:]}", flush=True)
        record("promises", name=name, exit_code=done.returncode, output=done.stderr[-3000:])
        check(done.returncode == 0, f"{name} on the GPU")


def small_training(folder, *flags):
    """The command of a training that goes on until something stops it."""
    snug, data, model = os.path.join(BUILD, "bin/snug"), os.path.join(folder, "train.csv"), os.path.join(folder, "model")
    if not os.path.exists(model):
        with open(data, "w") as f:
            f.write("text,label\n" + "".join(f"the cat number {i} sat on the mat,{i % 2}\n" for i in range(2000)))
        done = program(snug, "init", "--train", data, "--vocab-size", 300, "--hidden-size", 64, "--num-hidden-layers", 2, "--num-attention-heads", 2,
                       "--output-dir", model)
        check(done.returncode == 0, f"snug init: {done.stderr[-300:]}")
    return [snug, "train", "--model", model, "--train", data, "--device", "cuda", "--cache-dir", os.path.join(folder, "cache"), "--output-dir",
            os.path.join(folder, "out"), *flags]


def bad_input():
    """Devices that are not there and budgets that cannot be: a sentence and the right exit code."""
    folder = tempfile.mkdtemp()
    print("\n| asked for | exit code | said |\n|---|---|---|")
    for name, flags, env, expected, words in (
            ("a GPU where none is visible", [], {"CUDA_VISIBLE_DEVICES": ""}, 8, "no NVIDIA GPU"),
            ("--device cuda:7", ["--device", "cuda:7"], {}, 8, "cuda:7"),
            ("--memory 999GiB", ["--memory", "999GiB"], {}, 4, "GiB"),
            ("--memory 100MiB", ["--memory", "100MiB"], {}, 4, "least that works")):
        done = program(*small_training(folder, "--max-steps", "20", *flags), env=env)
        said = [line for line in done.stderr.splitlines() if words in line]
        print(f"| {name} | {done.returncode} | {' '.join(said)} |", flush=True)
        record("bad-input", asked=name, exit_code=done.returncode, said=said)
        check(done.returncode == expected and bool(said), f"{name}: exit code {done.returncode}, {done.stderr[-300:]}")
    shutil.rmtree(folder, ignore_errors=True)


def neighbours():
    """Other processes on the card: a budget above what they leave is cut, with both figures; too little left is refused."""
    folder = tempfile.mkdtemp()
    hold = ("import sys, torch\nfree, total = torch.cuda.mem_get_info()\nblock = torch.empty(free - int(sys.argv[1]), dtype=torch.uint8, device='cuda')\n"
            "print('held', flush=True)\nsys.stdin.read()")
    for left, expected in (8 * GIB, 0), (200 << 20, 4):
        holder = subprocess.Popen([os.environ.get("PYTHON", sys.executable), "-c", hold, str(left)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        held = holder.stdout.readline().strip() == "held"
        done = program(*small_training(folder, "--max-steps", "20", "--memory", "60GiB", "--overwrite-output-dir"))
        holder.communicate("")
        said = [line for line in done.stderr.splitlines() if "other processes" in line or line.startswith("error")]
        print(f"{left / GIB:.1f} GiB left: exit code {done.returncode}", *said, sep="\n  ", flush=True)
        record("neighbours", left_bytes=left, exit_code=done.returncode, said=said)
        check(held and done.returncode == expected and bool(said), f"neighbours leave {left} bytes: exit code {done.returncode}, {done.stderr[-300:]}")
    shutil.rmtree(folder, ignore_errors=True)


def last_step(checkpoints):
    """Of the checkpoints that are whole; 0 where there is none."""
    names = os.listdir(checkpoints) if os.path.isdir(checkpoints) else []
    return max([int(name[5:]) for name in names if name.startswith("step-") and "." not in name], default=0)


def faults():
    """A CUDA error in mid-run: the driver loads a library into the process that starts a kernel which traps."""
    folder = tempfile.mkdtemp()
    trigger, checkpoints = os.path.join(folder, "fail"), os.path.join(folder, "out/checkpoints")
    flags = "--max-steps", "10000000", "--save-steps", "200"
    env = {**os.environ, "CUDA_INJECTION64_PATH": os.path.join(BUILD, "lib/libcuda_fault.so"), "CUDA_FAULT": trigger}
    run = subprocess.Popen(small_training(folder, *flags), env=env, stderr=subprocess.PIPE, text=True)
    deadline = time.time() + 60
    while run.poll() is None and time.time() < deadline and last_step(checkpoints) == 0:
        time.sleep(0.1)
    open(trigger, "w").close()
    try:
        _, err = run.communicate(timeout=30)
    except subprocess.TimeoutExpired:
        run.kill()
        _, err = run.communicate()
    said, step = [line for line in err.splitlines() if line.startswith("error")], last_step(checkpoints)
    print(f"a CUDA error in mid-run: exit code {run.returncode}", *said, sep="\n  ")
    again = subprocess.Popen(small_training(folder, *flags, "--resume-from-checkpoint", "latest"), stderr=subprocess.PIPE, text=True)
    time.sleep(6)
    again.terminate()
    _, resumed = again.communicate(timeout=60)
    print(f"resumed from step {step}, then told to stop: exit code {again.returncode}", flush=True)
    record("faults", exit_code=run.returncode, said=said, resumed_from=step, resumed=again.returncode)
    check(run.returncode == 8 and bool(said), f"CUDA error: exit code {run.returncode}, {err[-300:]}")
    check(step > 0 and again.returncode == 9, f"resuming behind a CUDA error: {resumed[-300:]}")
    shutil.rmtree(folder, ignore_errors=True)


def sst2_techniques():
    """A real model on SST-2's first 10,000 rows by six techniques: accuracy, peak, time."""
    data, model = os.environ.get("SST2"), os.environ.get("MINILM")
    if not data or not model:
        print("sst2-techniques: left out, SST2 and MINILM name no folders")
        return
    folder = tempfile.mkdtemp()
    with open(os.path.join(data, "train.tsv")) as f, open(os.path.join(folder, "train.tsv"), "w") as g:
        g.writelines(line for _, line in zip(range(10001), f))
    rows = {"full": [], "frozen encoder": ["--freeze", "all-but-head"], "LoRA": ["--lora-rank", 8, "--lora-target-modules", "all-linear"],
            "8-bit AdamW": ["--optim", "adamw_8bit"], "bf16-SR": ["--optim", "adamw_bf16"],
            "int8 + LoRA": ["--quantize", "int8", "--lora-rank", 8, "--lora-target-modules", "all-linear"]}
    print("\n| technique | rate | accuracy (seeds) | mean | peak MiB | s |\n|---|---|---|---|---|---|")
    full = None
    for name, flags in rows.items():
        rate = {"frozen encoder": 1e-3}.get(name, 1e-3 if "LoRA" in name else 1e-4)
        scores, peak, seconds = [], 0, 0
        for seed in 42, 43, 44:
            done = program(os.path.join(BUILD, "bin/snug"), "train", "--model", model, "--train", os.path.join(folder, "train.tsv"), "--validation",
                           os.path.join(data, "dev.tsv"), "--max-length", 64, "--batch-size", 16, "--learning-rate", rate, "--warmup-ratio", 0.1,
                           "--num-train-epochs", 1, "--seed", seed, "--precision", "fp32", "--save-strategy", "no", *flags, "--overwrite-output-dir",
                           "--output-dir", os.path.join(folder, "out"), "--json")
            if done.returncode != 0:
                check(False, f"{name}: {done.stderr[-300:]}")
                break
            report = json.loads(done.stdout)
            scores.append(report["eval_accuracy"])
            peak, seconds = max(peak, report["measured_peak_bytes"]), seconds + report["seconds"]
        if not scores:
            continue
        mean = sum(scores) / len(scores)
        full = full or mean
        print(f"| {name} | {rate:g} | {', '.join(f'{score:.4f}' for score in scores)} | {mean:.4f} | {peak / 2**20:.0f} | {seconds / len(scores):.1f} |", flush=True)
        record("sst2-technique", name=name, scores=scores, peak_bytes=peak, seconds=seconds / len(scores))
        if name in ("8-bit AdamW", "LoRA"):
            check(mean >= full - 0.01, f"{name}: accuracy {mean:.4f}, full {full:.4f}")


def budgets():
    """A small model on SST-2's first rows, 200 steps: losses at the least budget and with gradients on the host, against those without a limit."""
    data = os.environ.get("SST2")
    if not data:
        print("budgets: left out, SST2 names no folder")
        return
    folder = tempfile.mkdtemp()
    snug, train, model = os.path.join(BUILD, "bin/snug"), os.path.join(folder, "train.tsv"), os.path.join(folder, "model")
    with open(os.path.join(data, "train.tsv")) as f, open(train, "w") as g:
        g.writelines(line for _, line in zip(range(6401), f))
    done = program(snug, "init", "--train", train, "--vocab-size", 4000, "--hidden-size", 256, "--num-hidden-layers", 4, "--num-attention-heads", 4,
                   "--output-dir", model)
    check(done.returncode == 0, f"snug init: {done.stderr[-300:]}")

    def losses(precision, *flags):
        common = ["--model", model, "--train", train, "--batch-size", 32, "--device", "cuda", "--precision", precision, "--json", *flags]
        if "--memory" in flags:
            plan = program(snug, "plan", *common)  # says the least, whether or not it fits
            common[-1] = json.loads(plan.stdout)["minimum_budget_bytes"] + (1 << 20)
        out = os.path.join(folder, "out")
        done = program(snug, "train", *common, "--num-train-epochs", 1, "--learning-rate", "1e-4", "--save-strategy", "no", "--overwrite-output-dir",
                       "--output-dir", out)
        if done.returncode != 0:
            raise RuntimeError(done.stderr[-300:])
        with open(os.path.join(out, "metrics.jsonl")) as f:
            return [row["loss"] for row in map(json.loads, f) if "loss" in row], json.loads(done.stdout)["measured_peak_bytes"]

    print("\n| precision | plan | MiB | largest relative difference of a loss, ten steps | all |\n|---|---|---|---|---|")
    for precision, most in ("fp32", 2e-5), ("bf16", 1e-2):
        free, peak = losses(precision)
        print(f"| {precision} | no limit | {peak >> 20} | | |")
        for name, flags in ("least, no offload", ["--offload", "none", "--memory", "1MiB"]), ("gradients on the host", ["--offload", "gradients"]):
            other, peak = losses(precision, *flags)
            off = [abs(a - b) / abs(a) for a, b in zip(free, other, strict=True)]
            print(f"| {precision} | {name} | {peak >> 20} | {max(off[:10]):.1e} | {max(off):.1e} |", flush=True)
            record("budgets", precision=precision, plan=name, peak_bytes=peak, ten_steps=max(off[:10]), all_steps=max(off))
            check(max(off[:10]) <= most, f"{precision}, {name}: losses differ by {max(off[:10]):.1e}")
    shutil.rmtree(folder, ignore_errors=True)


def end_to_end():
    data = os.environ.get("SST2")
    if not data:
        print("end-to-end: left out, SST2 names no folder")
        return
    folder = tempfile.mkdtemp()
    snug = os.path.join(BUILD, "bin/snug")
    train, dev = (os.path.join(data, name) for name in ("train.tsv", "dev.tsv"))
    done = program(snug, "init", "--train", train, "--vocab-size", 30522, "--hidden-size", 768, "--num-hidden-layers", 12,
                   "--num-attention-heads", 12, "--output-dir", os.path.join(folder, "model"))
    check(done.returncode == 0, f"snug init: {done.stderr[-300:]}")
    start = time.time()
    done = program(snug, "train", "--model", os.path.join(folder, "model"), "--train", train, "--validation", dev, "--batch-size", 32,
                   "--num-train-epochs", 3, "--learning-rate", "2e-5", "--warmup-ratio", 0.06, "--save-strategy", "epoch", "--device", "cuda", "--cache-dir",
                   os.path.join(folder, "cache"), "--output-dir", os.path.join(folder, "out"), "--json", timeout=580)
    seconds = time.time() - start
    check(done.returncode == 0, f"end to end: {done.stderr[-500:]}")
    run = json.loads(done.stdout)
    whole = run["examples"] / seconds
    row = dict(examples=run["examples"], seconds=round(seconds, 1), examples_per_second=round(whole), inside_loop=round(run["examples_per_second"]),
               tokens_per_second=round(run["tokens_per_second"]), eval_accuracy=run.get("eval_accuracy"))
    peer = program(os.environ.get("PYTHON", sys.executable), os.path.join(ROOT, "bench/peer_gpu.py"), "sst2-data", train, timeout=400)
    for line in peer.stdout.splitlines():
        if line.startswith('{"'):
            row["trainer_examples_per_second"] = json.loads(line)["examples_per_second"]
            row["times_faster"] = round(whole / row["trainer_examples_per_second"], 1)
    print("end to end:", json.dumps(row))
    record("end-to-end", **row)
    if "times_faster" in row:
        check(row["times_faster"] >= 10, f"end to end: {row['times_faster']} times the Trainer, must reach 10")
    shutil.rmtree(folder, ignore_errors=True)


def main():
    parts = {"tests": tests, "sanitize": sanitize, "memory": memory, "speed": speed, "kernels": kernels, "energy": energy, "language": language, "generate": generate,
             "frontier": frontier, "monotone": monotone, "smallest": smallest, "techniques": techniques, "promises": promises, "budgets": budgets,
             "bad-input": bad_input, "neighbours": neighbours, "faults": faults, "sst2-techniques": sst2_techniques, "end-to-end": end_to_end}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help=", ".join(parts))
    parser.add_argument("--out", help="JSON lines go here")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # so that what was started is ended
    for name in args.parts or parts:
        print(f"\n## {name}", flush=True)
        start = time.time()
        try:
            parts[name]()
        except (RuntimeError, subprocess.TimeoutExpired, OSError) as error:
            check(False, f"{name}: {error}")
        print(f"({name}: {time.time() - start:.0f} s)", flush=True)
        if args.out:
            with open(args.out, "w") as f:
                f.writelines(json.dumps(row) + "\n" for row in results)
    print(f"\n{len(failures)} checks failed" if failures else "\nall checks passed")
    for failure in failures:
        print("  " + failure)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
