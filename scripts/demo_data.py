"""A real data set from the machine's own package index: a package's one-line description -> its section.
    apt-cache dumpavail | python3 scripts/demo_data.py FOLDER      writes train.csv (20,000 rows) and validation.csv (2,000)"""
import csv
import os
import random
import sys
from collections import Counter

SECTIONS, TRAIN, VALIDATION = 12, 20_000, 2_000


def descriptions(lines):
    fields = {}
    for line in lines:
        if line.strip():
            name, _, value = line.partition(": ")
            if name in ("Section", "Description", "Description-en"):
                fields[name.split("-")[0]] = value.strip()
        else:
            if len(fields) == 2:
                yield fields["Description"], fields["Section"].split("/")[-1]
            fields = {}


def main():
    rows = sorted(set(descriptions(sys.stdin)))
    largest = [name for name, _ in Counter(section for _, section in rows).most_common(SECTIONS)]
    rows = [row for row in rows if row[1] in largest]
    random.Random(1).shuffle(rows)
    if len(rows) < TRAIN + VALIDATION:
        sys.exit(f"error: the package index has only {len(rows)} usable descriptions; apt-get update fetches it")
    for name, part in ("train", rows[:TRAIN]), ("validation", rows[TRAIN:TRAIN + VALIDATION]):
        with open(os.path.join(sys.argv[1], name + ".csv"), "w", newline="") as f:
            csv.writer(f).writerows([("text", "label"), *part])
    print(f"{TRAIN} rows to train on and {VALIDATION} to validate with, {SECTIONS} sections: {', '.join(sorted(largest))}")


if __name__ == "__main__":
    main()
