"""Planning beyond one budget: the sweep, refusals with what would fit, parts that are recomputed, calibration."""
import json
import os
import resource
import unittest

from harness import MIB, ON_GPU, SnugTest, read_losses, run, sentence, write_csv


class Planning(SnugTest):
    def flags(self, hidden=64, layers=3, positions=64, longest=60, **more):
        model = self.init(hidden=hidden, layers=layers, positions=positions, **more)
        data = write_csv(self.path("train.csv"), 60, self.rng, longest=longest)
        return ["--model", model, "--train", data, "--batch-size", 16, "--threads", 2, *self.cache()]

    def test_the_sweep_is_a_frontier_with_the_chosen_plan_in_it(self):
        flags = self.flags(hidden=128, layers=4)
        roomy = run("plan", *flags, "--memory", "100GiB", "--json").json()
        self.assertNotIn("sweep", roomy)
        middle = (roomy["minimum_budget_bytes"] + roomy["peak_bytes"]) // 2
        plan = run("plan", *flags, "--memory", middle, "--sweep", "--json").json()
        sweep = plan["sweep"]
        self.assertGreater(len(sweep), 3)
        for before, after in zip(sweep, sweep[1:]):
            self.assertLess(before["budget_bytes"], after["budget_bytes"])
            self.assertGreater(before["relative_time"], after["relative_time"])
        for point in sweep:
            self.assertLessEqual(point["peak_bytes"], point["budget_bytes"])
            self.assertIsNone(point["predicted_tokens_per_second"])
        self.assertEqual(sweep[-1]["relative_time"], 1)
        chosen = [point for point in sweep if point["chosen"]]
        self.assertEqual(len(chosen), 1)
        self.assertEqual(chosen[0]["recompute"], plan["recompute"])
        self.assertEqual(chosen[0]["micro_batch_tokens"], plan["micro_batch_tokens"])
        text = run("plan", *flags, "--memory", middle, "--sweep").out
        for word in ("budget", "peak", "recomputed", "speed", "@ is the plan above", "\n>"):
            self.assertIn(word, text)

    def test_a_refusal_says_what_would_fit(self):
        # With the state in a file, little is left above what the program itself takes.
        flags = [*self.flags(positions=512, longest=500, hidden=256), "--offload", "none"]
        least = run("plan", *flags, "--json").json()["minimum_budget_bytes"]
        refused = run("plan", *flags, "--memory", least - 2 * MIB, "--json", expect=4).json()
        self.assertFalse(refused["fits"])
        fitting = refused["would_fit_with"]
        self.assertTrue(fitting)
        self.assertIn("--max-length 64", [a["technique"] for a in fitting])
        peaks = [a["peak_bytes"] for a in fitting]
        self.assertEqual(peaks, sorted(peaks))
        for a in fitting:
            self.assertLessEqual(a["peak_bytes"], least - 2 * MIB)
            self.assertAlmostEqual(a["peak_bytes"] + a["saves_bytes"], refused["minimum_budget_bytes"], delta=1)
            # What is promised holds.
            run("plan", *flags, *a["technique"].split(), "--memory", a["peak_bytes"] + MIB, "--json")
        text = run("plan", *flags, "--memory", least - 2 * MIB, expect=4).out
        self.assertIn("with other results it would fit", text)
        self.assertIn("--max-length 64 would need", text)

    def test_a_refusal_leaves_adapters_as_they_were_asked_for(self):
        flags = [*self.flags(hidden=256, layers=4), "--offload", "none", "--lora-rank", 4]
        least = run("plan", *flags, "--json").json()["minimum_budget_bytes"]
        fitting = run("plan", *flags, "--memory", least - 4 * MIB, "--json", expect=4).json()["would_fit_with"]
        techniques = [a["technique"] for a in fitting]
        self.assertIn("--quantize int8", techniques)
        self.assertFalse([t for t in techniques if "--lora-rank" in t or "--freeze" in t])
        for a in fitting:
            run("plan", *flags, *a["technique"].split(), "--memory", a["peak_bytes"] + MIB, "--json")

    def test_training_refuses_with_the_same_object(self):
        flags = [*self.flags(), "--memory", "1MiB", "--json"]
        plan = run("plan", *flags, expect=4).json()
        refused = run("train", *flags, "--output-dir", self.path("out"), expect=4)
        self.assertIn("error: ", refused.err)
        self.assertFalse(refused.json()["fits"])
        self.assertEqual(set(refused.json()), set(plan))
        self.assertAlmostEqual(refused.json()["minimum_budget_bytes"], plan["minimum_budget_bytes"], delta=MIB)

    def test_a_hopeless_refusal_says_so(self):
        flags = self.flags()
        refused = run("plan", *flags, "--memory", "1MiB", "--json", expect=4).json()
        self.assertEqual(refused["would_fit_with"], [])
        text = run("plan", *flags, "--memory", "1MiB", expect=4).out
        self.assertIn("nothing that changes the results makes it fit either", text)

    def test_parts_can_be_named_and_change_no_bit(self):
        flags = [*self.flags(), "--max-steps", 5, "--save-strategy", "steps", "--save-steps", 3]
        losses = {}
        for parts in ("none", "norms", "activations", "mlp,attention", "attention,sums", "all", "2"):
            folder = self.path("out-" + parts)
            run("train", *flags, "--recompute", parts, "--output-dir", folder)
            losses[parts] = read_losses(folder)
            self.assertEqual(losses[parts], losses["none"], parts)
        with open(self.path("out-mlp,attention", "run.json")) as f:
            self.assertEqual(json.load(f)["plan"]["recompute"], "mlp in 3, attention in 3 of 3 layers")

    def test_a_resumed_run_recomputes_what_it_did(self):
        flags = [*self.flags(), "--max-steps", 6, "--save-steps", 3]
        whole = self.path("whole")
        run("train", *flags, "--recompute", "norms,mlp", "--output-dir", whole)
        # The flag is gone, the checkpoint's plan is not.
        checkpoint = sorted(os.listdir(os.path.join(whole, "checkpoints")))[0]
        run("train", *flags, "--output-dir", whole, "--resume-from-checkpoint", os.path.join(whole, "checkpoints", checkpoint))
        with open(os.path.join(whole, "run.json")) as f:
            self.assertEqual(json.load(f)["plan"]["recompute"], "norms in 3, mlp in 3 of 3 layers")

    def test_wrong_parts_are_refused_with_the_right_ones(self):
        flags = self.flags()
        for wrong in ("mpl", "mlp,", "99", "-1", "mlp norms"):
            error = run("plan", *flags, "--recompute", wrong, expect=2).err
            for name in ("auto", "none", "all", "norms", "activations", "mlp", "attention", "sums"):
                self.assertIn(name, error)

    def test_calibration_predicts_and_is_kept(self):
        flags = self.flags(hidden=128)
        self.assertIsNone(run("plan", *flags, "--json").json()["predicted_tokens_per_second"])
        first = run("plan", *flags, "--calibrate", "--json").json()
        self.assertGreater(first["predicted_tokens_per_second"], 0)
        kept = [name for name in os.listdir(self.path("cache")) if name.startswith("speed-")]
        self.assertEqual(len(kept), 1)
        again = run("plan", *flags, "--json").json()
        self.assertEqual(again["predicted_tokens_per_second"], first["predicted_tokens_per_second"])
        # Another width was not timed.
        other = self.flags(hidden=96, name="other")
        self.assertIsNone(run("plan", *other, "--json").json()["predicted_tokens_per_second"])

    def test_a_calibrated_run_stays_inside_its_budget(self):
        flags = [*self.flags(hidden=128), "--max-steps", 4]
        plan = run("plan", *flags, "--json", "--memory", "100GiB").json()
        budget = (plan["minimum_budget_bytes"] + plan["peak_bytes"]) // 2 + 2 * MIB
        folder = self.path("out")
        result = run("train", *flags, "--calibrate", "--memory", budget, "--output-dir", folder)
        with open(os.path.join(folder, "run.json")) as f:
            report = json.load(f)
        self.assertLessEqual(report["measured_peak_bytes"], budget)
        if result.peak_bytes:
            self.assertLessEqual(result.peak_bytes, budget)

    def test_a_card_that_is_not_here_cannot_be_timed(self):
        error = run("plan", *self.flags(), "--device-profile", "rtx3070", "--calibrate", expect=2).err
        self.assertIn("--calibrate needs the device itself", error)


class Flags(SnugTest):
    """Values that mean nothing, or contradict each other, are named instead of taken for something else."""

    def setUp(self):
        super().setUp()
        self.data = write_csv(self.path("train.csv"), 60, self.rng)
        self.model = self.init(train=self.data, vocab=200)

    def refused(self, *flags, said, model=None, data=None):
        error = run("plan", "--model", model or self.model, "--train", data or self.data, *self.cache(), *flags, expect=2).err
        self.assertIn(said, error)

    def test_whole_numbers(self):
        self.refused("--seed", -1, said="--seed: -1 is less than 0")
        self.refused("--threads", -3, said="--threads: -3 is less than 0")
        for flag, number in (("--seed", 18446744073709551616), ("--max-steps", 9999999999999999999), ("--batch-size", -9999999999999999999)):
            self.refused(flag, number, said=f"{flag}: {number} does not fit into 64 bits")
        run("plan", "--model", self.model, "--train", self.data, *self.cache(), "--seed", 18446744073709551615)

    def test_two_names_of_one_flag(self):
        self.refused("--batch-size", 8, "--per-device-train-batch-size", 4, said="--batch-size 8 and --per-device-train-batch-size 4")
        self.refused("--per-device-train-batch-size", -4, said="--per-device-train-batch-size: -4")
        plan = run("plan", "--model", self.model, "--train", self.data, *self.cache(), "--json", "--batch-size", 4,
                   "--per-device-train-batch-size", 4, "--gradient-accumulation-steps", 3).json()
        self.assertEqual(plan["batch_size"], 12)

    def test_the_length_of_blocks(self):
        text = self.path("text.txt")
        with open(text, "w") as f:
            f.writelines(sentence(self.rng, 14) + "\n" for _ in range(100))
        model = self.init("gpt2", train=text, vocab=400, model_type="gpt2")
        self.refused("--max-length", 32, "--block-size", 48, said="--max-length 32 and --block-size 48", model=model, data=text)
        run("train", "--model", model, "--train", text, *self.cache(), "--max-length", 32, "--block-size", 48,
            "--output-dir", self.path("out"), expect=2)
        self.refused("--block-size", 2, said="--block-size 2 leaves no room", model=model, data=text)
        self.refused("--block-size", 65, said="--block-size 65 is more than", model=model, data=text)
        run("plan", "--model", model, "--train", text, *self.cache(), "--max-length", 32, "--block-size", 32)
        # What a refusal suggests goes with the flags that were given.
        refusal = run("plan", "--model", model, "--train", text, *self.cache(), "--block-size", 64, "--memory", "1MiB", expect=4).out
        self.assertNotIn("--max-length", refusal)
        self.assertIn("has no flag --max-length", run("generate", "--model", model, "--prompt", "time", "--max-length", 9, expect=2).err)

    def test_counts_over_several_files_name_no_single_one(self):
        for name in ("a.csv", "b.csv"):
            write_csv(self.path(name), 20, self.rng, longest=6)
            with open(self.path(name), "a") as f:
                f.write("no label\n" + "time " * 40 + ",yes\n")
        flags = ["--model", self.model, *self.cache(), "--skip-bad-rows", "--max-length", 20]
        both = run("plan", *flags, "--train", f"{self.path('a.csv')},{self.path('b.csv')}").err
        self.assertIn("2 files: 2 rows are wrong", both)
        self.assertIn("2 files: 2 texts have more than 20 tokens", both)
        one = run("plan", *flags, "--train", self.path("a.csv")).err
        self.assertIn("a.csv: 1 row is wrong", one)
        self.assertIn("a.csv: 1 text has more than 20 tokens", one)

    @unittest.skipIf(ON_GPU, "a limit of the process")
    def test_a_limit_on_the_size_of_files_is_a_failed_write(self):
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 10, hard))
        try:
            error = run("train", "--model", self.model, "--train", self.data, "--max-steps", 1, "--output-dir", self.path("out"), *self.cache(),
                        expect=5).err
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        self.assertIn("File too large", error)


if __name__ == "__main__":
    unittest.main()
