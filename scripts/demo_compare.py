"""Two runs of one training side by side: memory, speed, and the losses step by step.
    python3 scripts/demo_compare.py RUN OTHER_RUN"""
import json
import os
import sys


def read(folder):
    with open(os.path.join(folder, "run.json")) as f:
        run = json.load(f)
    with open(os.path.join(folder, "metrics.jsonl")) as f:
        losses = [row["loss"] for row in map(json.loads, f) if "loss" in row]
    return run, losses


def main():
    (a, a_losses), (b, b_losses) = map(read, sys.argv[1:3])
    mib = lambda n: f"{n / 2**20:,.1f} MiB"
    rows = [("budget", *(mib(r["plan"]["budget_bytes"]) for r in (a, b))),
            ("peak, predicted", *(mib(r["predicted_peak_bytes"]) for r in (a, b))),
            ("peak, measured", *(mib(r["measured_peak_bytes"]) for r in (a, b))),
            ("tokens a micro-batch", *(str(r["plan"]["micro_batch_tokens"]) for r in (a, b))),
            ("layers recomputed", *(r["plan"]["recompute"] for r in (a, b))),
            ("tokens a second", *(f"{r['tokens_per_second']:,.0f}" for r in (a, b)))]
    steps = min(len(a_losses), len(b_losses))
    for step in sorted({1, 2, 3, 10, steps // 2, steps}):
        rows.append((f"loss of step {step}", f"{a_losses[step - 1]:.6f}", f"{b_losses[step - 1]:.6f}"))
    worst = max(abs(x - y) / abs(x) for x, y in zip(a_losses, b_losses))
    for row in rows:
        print("  {:<24}{:>16}{:>16}".format(*row))
    print(f"\nlargest difference of a loss over {steps} steps: {worst:.1e} of its value")


if __name__ == "__main__":
    main()
