"""Writes examples/reviews.csv and examples/reviews-validation.csv: short made-up shop reviews with a sentiment, for the demo.
The sentiment is carried by phrases, negation and contrast, so that word lists alone do not solve it.

    python3 examples/make_reviews.py
"""
import csv
import os
import random

HERE = os.path.dirname(os.path.abspath(__file__))
THINGS = ["kettle", "lamp", "backpack", "keyboard", "tent", "blender", "headset", "raincoat", "desk", "bicycle pump",
          "coffee grinder", "phone case", "umbrella", "notebook", "heater", "camera strap"]
GOOD = ["works perfectly", "looks great", "feels solid", "arrived early", "is worth every penny", "does its job quietly",
        "survived a fall", "is easy to clean", "fits exactly", "made my mornings better"]
BAD = ["stopped working", "smells of glue", "feels flimsy", "arrived late", "is a waste of money", "rattles all day",
       "broke at once", "is impossible to clean", "does not fit", "ruined my weekend"]
TIMES = ["after a week", "after two months", "from the first day", "so far", "by now", "every single time"]
OPENERS = ["", "Bought this for my sister. ", "Second one I own. ", "Ordered on a whim. ", "A gift from work. ",
           "I read many reviews first. "]


def phrase(good):
    if random.random() < 0.25:  # negation turns a phrase of the other side around
        other = random.choice(BAD if good else GOOD)
        return f"I would not say it {other}" if good else f"nobody can say it {other}"
    return "it " + random.choice(GOOD if good else BAD)


def review(good):
    thing = random.choice(THINGS)
    text = random.choice(OPENERS)
    if random.random() < 0.4:  # contrast: what comes after "but" counts
        text += f"The {thing}: {phrase(not good)}, but {random.choice(TIMES)} {phrase(good)}."
    else:
        text += f"The {thing}, well, {phrase(good)} {random.choice(TIMES)}."
    if random.random() < 0.3:
        text += random.choice([" Would buy again.", " Five stars."] if good else [" Sent it back.", " One star."])
    return text


def write(name, rows):
    with open(os.path.join(HERE, name), "w", newline="") as f:
        out = csv.writer(f)
        out.writerow(["text", "label"])
        for i in range(rows):
            good = random.random() < 0.5
            out.writerow([review(good), "positive" if good else "negative"])


if __name__ == "__main__":
    random.seed(2026)
    write("reviews.csv", 3000)
    write("reviews-validation.csv", 500)
