"""Memory does not grow with the number of rows."""
import json
import os
import unittest

from harness import MIB, WORDS, SnugTest, run


class Scale(SnugTest):
    def peak(self, rows):
        data = self.path(f"rows-{rows}.csv")
        with open(data, "w") as f:
            f.write("text,label\n")
            for start in range(0, rows, 1000):
                f.write("".join(f"{self.rng.choice(WORDS)} {self.rng.choice(WORDS)} {start + i},{'yes' if i % 3 else 'no'}\n"
                                for i in range(min(1000, rows - start))))
        output = self.path(f"out-{rows}")
        result = run("train", "--model", self.model, "--train", data, "--batch-size", 32, "--max-steps", 20, "--output-dir", output,
                     *self.cache())
        with open(os.path.join(output, "run.json")) as f:
            measured = json.load(f)["measured_peak_bytes"]
        os.remove(data)
        return max(measured, result.peak_bytes or 0)

    def test_two_million_rows_take_what_twenty_thousand_take(self):
        self.model = self.init()
        few, many = self.peak(20_000), self.peak(2_000_000)
        print(f"peak with 20,000 rows {few / MIB:.1f} MiB, with 2,000,000 rows {many / MIB:.1f} MiB")
        self.assertLessEqual(abs(many - few), 16 * MIB)


if __name__ == "__main__":
    unittest.main()
