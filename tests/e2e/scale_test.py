"""Many rows: memory does not grow with them, a second run starts at once, every row is seen once an epoch. 200,000 rows unless
SNUG_SCALE_ROWS says otherwise (20000000 takes minutes and 3 GB of disk)."""
import json
import os
import subprocess
import time
import unittest

from harness import MIB, SNUG, WORDS, SnugTest, run

ROWS = int(os.environ.get("SNUG_SCALE_ROWS", "200000"))
PIPELINE_BENCH = os.path.join(os.path.dirname(SNUG), "pipeline_bench")


class Scale(SnugTest):
    def write_rows(self, rows):
        data = self.path(f"rows-{rows}.csv")
        block = "".join(f"{self.rng.choice(WORDS)} {self.rng.choice(WORDS)} {i},{'yes' if i % 3 else 'no'}\n" for i in range(1000))
        with open(data, "w") as f:
            f.write("text,label\n")
            for _ in range(rows // 1000):
                f.write(block)
        return data

    def resident_while_reading(self, data, flags):
        """[(bytes read, resident bytes)] until the whole file has been read."""
        size, samples = os.path.getsize(data), []
        with open(self.path("log"), "w") as log:
            process = subprocess.Popen([SNUG, *map(str, flags)], stdout=log, stderr=log)
            while process.poll() is None:
                try:
                    with open(f"/proc/{process.pid}/io") as f:
                        read = int(f.readline().split()[1])
                    with open(f"/proc/{process.pid}/statm") as f:
                        resident = int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
                except (OSError, IndexError, ValueError):
                    break
                if read >= size:
                    break
                samples.append((read, resident))
                time.sleep(0.005 if size < 100 * MIB else 0.1)
            process.wait()
        with open(self.path("log")) as f:
            self.assertEqual(process.returncode, 0, f.read())
        return samples

    def test_many_rows(self):
        model, data = self.init(), self.write_rows(ROWS)
        flags = ["train", "--model", model, "--train", data, "--batch-size", 32, "--max-steps", 1, *self.cache()]
        start = time.monotonic()
        samples = self.resident_while_reading(data, flags + ["--output-dir", self.path("first")])
        building = time.monotonic() - start
        # The first twentieth is row 1 million of 20. Few rows are read too fast to look at the process meanwhile.
        early = max((r for read, r in samples if read < os.path.getsize(data) / 20), default=None)
        late = max((r for read, r in samples if read > os.path.getsize(data) * 0.9), default=None)
        print(f"{ROWS} rows: resident {(early or 0) / MIB:.1f} MiB after a twentieth, {(late or 0) / MIB:.1f} MiB at the end; {building:.1f} s in all")
        if early and late:
            self.assertLessEqual(late - early, 16 * MIB)
        self.assertTrue((early and late) or ROWS < 5_000_000)

        start = time.monotonic()
        run(*flags, "--output-dir", self.path("second"))
        again = time.monotonic() - start
        print(f"second run: {again:.1f} s for everything with one step")
        self.assertLess(again, 60)
        if not os.path.exists(PIPELINE_BENCH):
            return  # data_files_test looks at epochs too, of fewer rows
        for mode in [], ["--beside-training"]:
            out = subprocess.run([PIPELINE_BENCH, *mode, model, data, "256", "1"], capture_output=True, text=True, check=True,
                                 env={**os.environ, "XDG_CACHE_HOME": self.path("xdg")}).stdout
            print(out)
            self.assertTrue(json.loads(out)["every_row_once"])

    def test_ten_times_the_rows_take_the_same_memory(self):
        model = self.init()
        peaks = []
        for rows in (ROWS // 10, ROWS):
            output = self.path(f"out-{rows}")
            result = run("train", "--model", model, "--train", self.write_rows(rows), "--batch-size", 32, "--max-steps", 20,
                         "--output-dir", output, *self.cache())
            with open(os.path.join(output, "run.json")) as f:
                peaks.append(max(json.load(f)["measured_peak_bytes"], result.peak_bytes or 0))
        print(f"peak with {ROWS // 10} rows {peaks[0] / MIB:.1f} MiB, with {ROWS} rows {peaks[1] / MIB:.1f} MiB")
        self.assertLessEqual(abs(peaks[1] - peaks[0]), 16 * MIB)


if __name__ == "__main__":
    unittest.main()
