"""Every pair of techniques that can be combined: planned == used, inside the budget; what is exact changes nothing beyond
rounding, whatever it is combined with. And random models, techniques and budgets."""
import itertools
import json
import math
import os
import random
import sys
import unittest

from harness import MIB, ON_GPU, SnugTest, read_losses, run, write_csv

STEPS = 8
TEACHER = "(a trained model)"
# The plan alone changes.
EXACT = {"small micro-batches": ("--micro-batch-tokens", 24), "recompute all": ("--recompute", "all"),
         "recompute parts": ("--recompute", "norms,activations,mlp"), "state outside": ("--offload", "state"),
         "activations outside": ("--offload", "activations"), "all outside": ("--offload", "gradients,activations" if ON_GPU else "state,activations")}
# The numbers change too; what each says has a group, of which a run has one at most.
INEXACT = {"8-bit": ("optimizer", "--optim", "adamw_8bit"), "bf16": ("optimizer", "--optim", "adamw_bf16"),
           "adafactor": ("optimizer", "--optim", "adafactor"), "sgd": ("optimizer", "--optim", "sgd"),
           "embeddings frozen": ("freeze", "--freeze", "embeddings"), "layers frozen": ("freeze", "--freeze", "embeddings,layers.0"),
           "layers kept": ("freeze", "--freeze", "embeddings,layers.0", "--keep-frozen", "on"),
           "LoRA": ("adapters", "--lora-rank", 4, "--lora-dropout", 0.1),
           "LoRA on int8": ("adapters", "--lora-rank", 4, "--quantize", "int8"), "teacher": ("loss", "--teacher", TEACHER)}
RUNS = int(os.environ.get("SNUG_FUZZ_RUNS", "10"))
FIRST = int(os.environ.get("SNUG_FUZZ_FIRST", "0"))


def combine(a, b):
    """Whether two exact techniques say different things. What lies outside is what layers keep that are recomputed whole."""
    return EXACT[a][0] != EXACT[b][0] and not ("activations" in str(EXACT[b][1]) and a == "recompute parts")


class BudgetTest(SnugTest):
    """Keeps in mind how near runs came to their budgets and plans."""

    def setUp(self):
        super().setUp()
        self.room, self.below = [], []
        self.addCleanup(self.tell_room)

    def tell_room(self):
        if self.room:
            print(f"{len(self.room)} runs: {min(self.room) / MIB:.2f} to {max(self.room) / MIB:.2f} MiB under their budgets, "
                  f"{min(self.below):.2%} to {max(self.below):.2%} under their plans", file=sys.stderr)

    def check_memory(self, budget, report, result):
        self.assertEqual(report["predicted_arena_bytes"], report["measured_arena_bytes"])
        for measured in filter(None, (report["measured_peak_bytes"], result.peak_bytes)):
            self.room.append(budget - measured)
            self.below.append(1 - measured / report["predicted_peak_bytes"])
            self.assertLessEqual(measured, budget, "above the budget")


class Combinations(BudgetTest):
    def setUp(self):
        super().setUp()
        self.model = self.init(hidden=64, layers=3)
        self.data = write_csv(self.path("train.csv"), 120, self.rng, longest=20)
        self.count = 0
        self.teacher = self.path("teacher")
        run("train", "--model", self.model, "--train", self.data, "--max-steps", 3, "--save-strategy", "no", *self.cache(), "--output-dir", self.teacher)

    def train(self, flags):
        """At the least budget that its plan prints; losses by step."""
        flags = ("--model", self.model, "--train", self.data, "--batch-size", 8, "--max-steps", STEPS, "--dropout", 0.1, "--learning-rate", 1e-3,
                 "--precision", "fp32", *self.cache(), *(self.teacher if flag == TEACHER else flag for flag in flags))
        least = run("plan", *flags, "--json").json()["minimum_budget_bytes"]
        self.count += 1
        out = self.path(f"out-{self.count}")
        result = run("train", *flags, "--memory", least, "--save-strategy", "no", "--output-dir", out, "--json")
        report = result.json()
        self.check_memory(least, report, result)
        losses = list(read_losses(out).values())
        self.assertEqual(len(losses), STEPS)
        self.assertTrue(all(math.isfinite(loss) for loss in losses))
        return losses

    def test_pairs(self):
        alone = {name: self.train(flags[1:]) for name, flags in INEXACT.items()}
        alone["plain"] = self.train(())
        for name, losses in alone.items():
            self.assertLess(max(losses), 3 * alone["plain"][0], name)
        for exact, other in itertools.product(EXACT, [*INEXACT, "plain"]):
            with self.subTest(f"{exact} and {other}"):
                losses = self.train((*EXACT[exact], *(INEXACT[other][1:] if other != "plain" else ())))
                # Moments of a few bits turn a rounding of the gradient into a step of theirs.
                tolerance = 2e-2 if other in ("8-bit", "bf16") else 1e-4
                for a, b in zip(losses, alone[other]):
                    self.assertLessEqual(abs(a - b), tolerance * b)
        for a, b in itertools.combinations(EXACT, 2):
            if combine(a, b):
                with self.subTest(f"{a} and {b}"):
                    for ours, plain in zip(self.train((*EXACT[a], *EXACT[b])), alone["plain"]):
                        self.assertLessEqual(abs(ours - plain), 1e-4 * plain)
        for a, b in itertools.combinations(INEXACT, 2):
            nothing_to_keep = "layers kept" in (a, b) and "adapters" in (INEXACT[a][0], INEXACT[b][0])
            if INEXACT[a][0] != INEXACT[b][0] and not nothing_to_keep:
                with self.subTest(f"{a} and {b}"):
                    losses = self.train((*INEXACT[a][1:], *INEXACT[b][1:]))
                    self.assertLess(max(losses), 3 * alone["plain"][0])


class BudgetFuzz(BudgetTest):
    """SNUG_FUZZ_RUNS sets how many, SNUG_FUZZ_FIRST the number of the first: each is drawn by its own."""

    def draw(self, i):
        self.rng = rng = random.Random(f"budget {i}")
        heads = rng.choice([1, 2, 4])
        family = rng.choice(["bert", "bert", "roberta", "gpt2"])
        model = self.init(f"model-{i}", hidden=heads * rng.choice([8, 16, 32, 64]), heads=heads, layers=rng.randint(1, 4), vocab=rng.choice([300, 1000]),
                          positions=64, model_type=family)
        data = write_csv(self.path(f"train-{i}.csv"), rng.randint(20, 300), rng, longest=rng.choice([3, 10, 40]))
        task = "clm" if family == "gpt2" else rng.choice(["classify", "mlm"])
        flags = ["--model", model, "--train", data, "--task", task, "--batch-size", rng.choice([1, 4, 16, 32]), "--max-steps", 3, "--seed", i,
                 "--save-strategy", rng.choice(["no", "epoch"]), *self.cache()]
        if task == "clm":
            flags += ["--block-size", rng.choice([16, 32, 64])]
        if task == "classify" and rng.random() < 0.3:
            flags += ["--validation", data]
        offload = rng.choice(["none", "state", "activations", "state,activations", *(["gradients", "gradients,activations"] if ON_GPU else [])])
        recompute = rng.choice(["all", "1"] if "activations" in offload else ["none", "all", "norms,activations", "attention", "mlp"])
        for technique in [("--optim", rng.choice(["adamw_8bit", "adamw_bf16", "adafactor", "sgd"])), ("--freeze", "embeddings"),
                          ("--lora-rank", rng.choice([1, 4, 16])), ("--offload", offload), ("--recompute", recompute)]:
            if rng.random() < 0.35:
                flags += technique
        if ON_GPU:
            flags += ["--precision", rng.choice(["bf16", "fp32"] if "adamw_bf16" in flags else ["bf16", "fp16", "fp32"])]
        if "--freeze" not in flags and "--lora-rank" not in flags and task != "mlm" and rng.random() < 0.4:
            flags += ["--freeze", "embeddings,layers.0", "--keep-frozen", "on"]
        return flags

    def test_random_techniques_and_budgets(self):
        for i in range(FIRST, FIRST + RUNS):
            flags = self.draw(i)
            with self.subTest(" ".join(map(str, flags))):
                plan = run("plan", *flags, "--memory", "100GiB", "--json").json()
                least = plan["minimum_budget_bytes"]
                budget = self.rng.choice([least, least + int((max(least, plan["peak_bytes"]) - least + MIB) * self.rng.random())])
                out = self.path(f"out-{i}")
                result = run("train", *flags, "--memory", budget, "--output-dir", out)
                with open(os.path.join(out, "run.json")) as f:
                    self.check_memory(budget, json.load(f), result)


if __name__ == "__main__":
    unittest.main()
