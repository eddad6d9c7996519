"""Real weights and real data, where the shared data folder is beside the checkout."""
import json
import os
import unittest

from harness import MIB, SHARED, SnugTest, needs_shared, run

MINILM = os.path.join(SHARED, "data", "weights", "all-MiniLM-L6-v2-fp16")
SST2 = os.path.join(SHARED, "data", "sst2")


class SharedData(SnugTest):
    @needs_shared("data/weights/all-MiniLM-L6-v2-fp16")
    def test_embeddings(self):
        golden = os.path.join(MINILM, "golden-embeddings.jsonl")
        ours = [json.loads(line)["embedding"] for line in run("embed", "--model", MINILM, "--input", golden).out.splitlines()]
        with open(golden) as f:
            theirs = [json.loads(line)["embedding"] for line in f]
        self.assertEqual(len(ours), len(theirs))
        worst = max(abs(a - b) for x, y in zip(ours, theirs) for a, b in zip(x, y))
        self.assertLessEqual(worst, 1e-4)

    @needs_shared("data/sst2")
    def test_sentiment(self):
        """MiniLM on the first 10,000 rows of SST-2, one epoch, in at most 700 MiB. PyTorch with this recipe reaches 0.851 to 0.868
        over five seeds (mean 0.861), snug 0.846 to 0.874 (mean 0.860): seeds decide the last point, so the limit is below both."""
        train = self.path("train.tsv")
        with open(os.path.join(SST2, "train.tsv")) as source, open(train, "w") as f:
            f.writelines(line for _, line in zip(range(10_001), source))
        budget = 700 * MIB
        result = run("train", "--model", MINILM, "--train", train, "--validation", os.path.join(SST2, "dev.tsv"), "--batch-size", 16,
                     "--num-train-epochs", 1, "--max-length", 64, "--learning-rate", "1e-4", "--warmup-ratio", 0.1, "--memory", budget, "--json",
                     "--output-dir", self.path("out"), *self.cache())
        report = result.json()
        print({k: report[k] for k in ("eval_accuracy", "predicted_peak_bytes", "measured_peak_bytes", "tokens_per_second")})
        self.assertGreaterEqual(report["eval_accuracy"], 0.84)
        self.assertLessEqual(max(report["measured_peak_bytes"], result.peak_bytes or 0), budget)


if __name__ == "__main__":
    unittest.main()
