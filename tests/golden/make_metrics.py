"""What the reference implementations say about awkward and random cases: tests/golden/metrics/*.json, which
src/metrics/golden_test.cc reads.

    pip install scikit-learn scipy seqeval 'transformers<5'
    python tests/golden/make_metrics.py

The reference of SQuAD 2.0 is transformers' squad_metrics, the official script as functions. Of 1.1 there is no package; its two
rules that differ are written down below: every gold answer counts, and an F1 without a common word is 0.

Where a reference gives nan, snug gives 0 (correlations, averages over no entity) or nothing (areas under ROC curves).
"""
import collections
import json
import math
import random
import types
import warnings
from pathlib import Path

import numpy as np
from scipy import stats
from seqeval import scheme as seqeval_scheme
from seqeval.metrics import sequence_labeling as seqeval_default
from seqeval.metrics import v1 as seqeval_strict
from seqeval.scheme import Entities
from sklearn import metrics as sk
from transformers.data.metrics import squad_metrics as squad

warnings.filterwarnings("ignore")
FOLDER = Path(__file__).parent / "metrics"


def write(name, cases):
    """A case a line."""
    FOLDER.mkdir(exist_ok=True)
    lines = ",\n".join(json.dumps(case, ensure_ascii=False, separators=(",", ":")) for case in cases)
    (FOLDER / f"{name}.json").write_text(f"[\n{lines}\n]\n")


def rows_of(precision, recall, f1, support):
    return [[float(p), float(r), float(f), int(s)] for p, r, f, s in zip(precision, recall, f1, support)]


def put(values, name, scores):
    for key, value in zip(("precision", "recall", "f1"), scores):
        values[key + name] = 0.0 if math.isnan(value) else float(value)


def mean_area(expected, scores):
    """Over the columns that have positives and negatives."""
    areas = [sk.roc_auc_score(e, s) for e, s in zip(expected.T, scores.T) if 0 < sum(e) < len(e)]
    return float(np.mean(areas)) if areas else None


# --- one label an example ---

def classification(name, classes, expected, predicted, probabilities=None):
    values = {"accuracy": float(sk.accuracy_score(expected, predicted)),
              "matthews_correlation": float(sk.matthews_corrcoef(expected, predicted))}
    for average in ("micro", "macro", "weighted"):
        put(values, "_" + average, sk.precision_recall_fscore_support(expected, predicted, average=average, zero_division=0)[:3])
    rows = rows_of(*sk.precision_recall_fscore_support(expected, predicted, labels=range(classes), zero_division=0))
    put(values, "", rows[1][:3] if classes == 2 else [values[f"{m}_macro"] for m in ("precision", "recall", "f1")])
    if probabilities is not None:
        p = np.array(probabilities)
        is_class = np.eye(classes)[expected]
        area = mean_area(is_class[:, 1:], p[:, 1:]) if classes == 2 else mean_area(is_class, p)
        if classes > 2 and len(set(expected)) == classes:
            assert math.isclose(area, sk.roc_auc_score(expected, p, multi_class="ovr"), rel_tol=1e-14)
        if area is not None:
            values["roc_auc"] = area
    return {"name": name, "classes": classes, "expected": expected, "predicted": predicted, "probabilities": probabilities,
            "all": values, "rows": rows, "confusion": sk.confusion_matrix(expected, predicted, labels=range(classes)).tolist()}


def sixteenths(rng, classes):
    """Probabilities that are often equal."""
    cuts = sorted(rng.randint(0, 16) for _ in range(classes - 1))
    return [(b - a) / 16 for a, b in zip([0] + cuts, cuts + [16])]


def classification_cases():
    yield classification("one example, right", 2, [1], [1], [[0.25, 0.75]])
    yield classification("one example, wrong", 3, [1], [2], [[0, 0.25, 0.75]])
    yield classification("one class only", 2, [1, 1, 1], [1, 1, 1], [[0.5, 0.5], [0, 1], [0.25, 0.75]])
    yield classification("class 1 never predicted", 2, [0, 1, 1, 0], [0, 0, 0, 0])
    yield classification("class 1 only predicted", 2, [0, 0, 0], [1, 1, 0])
    yield classification("always wrong", 2, [0, 1, 0, 1], [1, 0, 1, 0], [[0, 1], [1, 0], [0.25, 0.75], [0.5, 0.5]])
    yield classification("all scores equal", 2, [0, 1, 1, 0, 1], [0] * 5, [[0.5, 0.5]] * 5)
    yield classification("ties between the classes", 2, [0, 1, 0, 1, 0, 1, 1], [0, 1, 0, 0, 1, 1, 0],
                         [[1 - s, s] for s in (0.25, 0.75, 0.25, 0.25, 0.75, 0.5, 0.5)])
    yield classification("perfect order", 2, [0, 0, 1, 1], [0, 0, 1, 1], [[1 - s, s] for s in (0.1, 0.2, 0.3, 0.9)])
    yield classification("empty class, class only predicted", 5, [0, 0, 1, 2, 2, 2, 0], [0, 3, 1, 2, 0, 2, 3])
    yield classification("empty class with scores", 4, [0, 1, 3, 0, 1], [0, 1, 3, 2, 2],
                         [[0.5, 0.25, 0, 0.25], [0, 1, 0, 0], [0.25, 0, 0.25, 0.5], [0.25, 0.25, 0.5, 0], [0, 0, 1, 0]])
    yield classification("rare class", 2, [0] * 199 + [1], [0] * 200, [[1 - i / 256, i / 256] for i in range(200)])
    rng = random.Random(1)
    for i in range(120):
        classes = rng.choice([2, 2, 2, 3, 4, 7])
        count = rng.randint(1, 30)
        used = [rng.randrange(classes) for _ in range(rng.randint(1, classes))]  # some classes stay empty
        expected = [rng.choice(used) for _ in range(count)]
        probabilities = [sixteenths(rng, classes) for _ in range(count)]
        predicted = [int(np.argmax(p)) for p in probabilities]
        yield classification(f"random {i}", classes, expected, predicted, probabilities)


# --- any number of labels an example ---

def multi_label(name, expected, probabilities):
    e, p = np.array(expected), np.array(probabilities)
    predicted = (p > 0.5).astype(int)
    values = {"accuracy": float(sk.accuracy_score(e, predicted))}
    for average in ("micro", "macro", "weighted", "samples"):
        put(values, "_" + average, sk.precision_recall_fscore_support(e, predicted, average=average, zero_division=0)[:3])
    put(values, "", [values[f"{m}_micro"] for m in ("precision", "recall", "f1")])
    area = mean_area(e, p)
    if area is not None:
        values["roc_auc"] = area
        if all(0 < sum(column) < len(column) for column in e.T):
            assert math.isclose(area, sk.roc_auc_score(e, p, average="macro"), rel_tol=1e-14)
    rows = rows_of(*sk.precision_recall_fscore_support(e, predicted, average=None, zero_division=0))
    return {"name": name, "expected": expected, "probabilities": probabilities, "all": values, "rows": rows}


def multi_label_cases():
    yield multi_label("one example", [[1, 0, 1]], [[0.75, 0.25, 0.25]])
    yield multi_label("no label at all", [[0, 0], [0, 0]], [[0.25, 0.5], [0, 0.125]])
    yield multi_label("one half is not above the threshold", [[1, 0], [0, 1]], [[0.5, 0.5], [0.5, 0.75]])
    yield multi_label("a label that never occurs, one that always does", [[0, 1, 1], [0, 1, 0], [0, 1, 1]],
                      [[0.75, 0.75, 0.25], [0.25, 0.75, 0.75], [0, 0.25, 1]])
    yield multi_label("all scores equal", [[1, 0], [0, 1], [1, 1]], [[0.75, 0.75]] * 3)
    rng = random.Random(2)
    for i in range(60):
        labels, count, often = rng.randint(2, 6), rng.randint(1, 25), rng.random()
        expected = [[int(rng.random() < often) for _ in range(labels)] for _ in range(count)]
        yield multi_label(f"random {i}", expected, [[rng.randint(0, 16) / 16 for _ in range(labels)] for _ in range(count)])


# --- numbers ---

def regression(name, expected, predicted):
    def correlation(function):
        value = function(expected, predicted).statistic if len(expected) > 1 else math.nan
        return 0.0 if math.isnan(value) else float(value)

    r2 = sk.r2_score(expected, predicted) if len(expected) > 1 else float(expected == predicted)
    return {"name": name, "expected": expected, "predicted": predicted,
            "all": {"mse": float(sk.mean_squared_error(expected, predicted)), "mae": float(sk.mean_absolute_error(expected, predicted)),
                    "r2": float(r2), "pearson": correlation(stats.pearsonr), "spearmanr": correlation(stats.spearmanr)}}


def regression_cases():
    yield regression("one example, right", [2.5], [2.5])
    yield regression("one example, wrong", [2.5], [3.0])
    yield regression("two examples", [1.0, 2.0], [5.0, 4.5])
    yield regression("constant prediction", [1.0, 2.0, 3.0], [2.0, 2.0, 2.0])
    yield regression("constant data", [2.0, 2.0, 2.0], [1.0, 2.0, 3.0])
    yield regression("both constant and equal", [2.0, 2.0], [2.0, 2.0])
    yield regression("ties in both", [1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 3.0], [0.5, 1.0, 1.0, 1.0, 2.0, 0.5, 2.0])
    yield regression("negative zero", [0.0, -0.0, 1.0, -1.0], [-0.0, 0.0, 0.5, -2.0])
    yield regression("upside down", [0.0, 1.0, 2.0, 5.0], [3.0, 2.0, 1.0, -7.0])
    rng = random.Random(3)
    yield regression("a large mean", [round(1e7 + rng.random(), 3) for _ in range(50)], [round(1e7 + rng.random(), 3) for _ in range(50)])
    yield regression("tiny numbers", [rng.random() * 1e-150 for _ in range(20)], [rng.random() * 1e-150 for _ in range(20)])
    for i in range(80):
        count = rng.randint(2, 40)
        expected = [rng.randint(0, 20) / 4 for _ in range(count)]  # as in STS-B: many are equal
        noise = rng.choice([0.1, 1.0, 10.0])
        yield regression(f"random {i}", expected, [round(e + rng.gauss(0, noise), rng.choice([1, 6])) for e in expected])


# --- entities ---

SCHEMES = {"iob1": seqeval_scheme.IOB1, "iob2": seqeval_scheme.IOB2, "iobes": seqeval_scheme.IOBES, "bilou": seqeval_scheme.BILOU}


def entities(name, scheme, expected, predicted):
    if scheme == "conll":
        score = lambda average: seqeval_default.precision_recall_fscore_support(expected, predicted, average=average)
        found = [[list(e) for e in seqeval_default.get_entities(tags)] for tags in expected]
        kinds = {e[0] for tags in (expected, predicted) for e in seqeval_default.get_entities(tags)}
    else:
        kind = SCHEMES[scheme]
        score = lambda average: seqeval_strict.precision_recall_fscore_support(expected, predicted, average=average, scheme=kind)
        found = [[[e.tag, e.start, e.end - 1] for e in sequence] for sequence in Entities(expected, kind).entities]
        kinds = Entities(expected, kind).unique_tags | Entities(predicted, kind).unique_tags
    values = {"accuracy": float(seqeval_default.accuracy_score(expected, predicted))}
    for average in ("micro", "macro", "weighted"):
        put(values, "_" + average, score(average)[:3] if kinds else (0, 0, 0))
    put(values, "", [values[f"{m}_micro"] for m in ("precision", "recall", "f1")])
    rows = [[kind] + row for kind, row in zip(sorted(kinds), rows_of(*score(None)))] if kinds else []
    return {"name": name, "scheme": scheme, "expected": expected, "predicted": predicted, "entities": found, "all": values, "rows": rows}


def entity_cases():
    awkward = {
        "I after O": ["O", "I-PER", "I-PER", "O", "I-LOC"],
        "type changes inside": ["B-PER", "I-LOC", "I-LOC", "I-PER", "O"],
        "adjacent entities": ["B-PER", "B-PER", "I-PER", "B-LOC", "I-LOC"],
        "adjacent by I only": ["I-PER", "I-PER", "I-LOC", "I-PER"],
        "B inside IOB1": ["I-PER", "I-PER", "B-PER", "I-PER", "O", "B-PER"],
        "entity to the end": ["O", "B-ORG", "I-ORG"],
        "whole sequence": ["B-ORG", "I-ORG", "I-ORG"],
        "nothing": ["O", "O", "O"],
        "one word": ["B-PER"],
        "no types": ["B", "I", "O", "I", "B"],
        "type with dashes": ["B-A-B", "I-A-B", "I-A-C", "O", "B--X", "I-X-"],
        "other letters": ["B-Straße", "I-Straße", "O", "B-人", "I-人"],
        "O with a type": ["B-PER", "O-PER", "I-PER"],
        "E without B": ["O", "E-PER", "E-PER", "O", "I-PER", "E-PER"],
        "S inside": ["B-PER", "S-PER", "I-PER", "E-PER", "S-LOC"],
        "B without E": ["B-PER", "I-PER", "O", "B-LOC", "E-LOC", "E-LOC"],
        "B E of two types": ["B-PER", "E-LOC", "B-LOC", "I-LOC", "E-LOC"],
        "L without B": ["O", "L-PER", "L-PER", "I-PER", "L-PER"],
        "U beside U": ["U-PER", "U-PER", "B-PER", "L-PER", "U-LOC"],
        "U inside": ["B-PER", "U-PER", "I-PER", "L-PER"],
    }
    rng = random.Random(4)
    for name, tags in awkward.items():
        other = list(tags)
        other[rng.randrange(len(tags))] = "O"
        for scheme in ["conll", *SCHEMES]:
            try:
                yield entities(name, scheme, [tags, other], [tags, tags])
                yield entities(name + ", swapped", scheme, [tags, tags], [other, other[::-1]])
            except (ValueError, KeyError):
                assert scheme != "conll"  # tags that are not of this scheme
    yield entities("a type only in the data, one only predicted", "conll", [["B-PER", "O"], ["B-LOC"]], [["B-ORG", "O"], ["B-LOC"]])
    yield entities("nothing anywhere", "conll", [["O"], ["O", "O"]], [["O"], ["O", "O"]])
    prefixes = {"conll": "BIES", "iob1": "IB", "iob2": "BI", "iobes": "BIES", "bilou": "BILU"}
    for i in range(150):
        scheme = rng.choice(list(prefixes))
        alphabet = ["O"] + [f"{p}-{t}" for p in prefixes[scheme] for t in ("PER", "LOC")[:rng.randint(1, 2)]]
        lengths = [rng.randint(1, 12) for _ in range(rng.randint(1, 3))]
        expected = [[rng.choice(alphabet) for _ in range(n)] for n in lengths]
        predicted = [[t if rng.random() < 0.7 else rng.choice(alphabet) for t in tags] for tags in expected]
        yield entities(f"random {i}", scheme, expected, predicted)


# --- answers ---

def squad1(questions):
    def f1(gold, prediction):
        a, b = squad.normalize_answer(gold).split(), squad.normalize_answer(prediction).split()
        common = sum((collections.Counter(a) & collections.Counter(b)).values())
        return 0.0 if common == 0 else 2 * (common / len(b)) * (common / len(a)) / (common / len(b) + common / len(a))

    exact = [max(squad.compute_exact(g, q["prediction"]) for g in q["gold"]) for q in questions]
    f1s = [max(f1(g, q["prediction"]) for g in q["gold"]) for q in questions]
    return {"exact_match": 100.0 * sum(exact) / len(exact), "f1": 100.0 * sum(f1s) / len(f1s)}


def squad2(questions, threshold):
    examples = [types.SimpleNamespace(qas_id=i, answers=[{"text": g} for g in q["gold"]]) for i, q in enumerate(questions)]
    predictions = {i: q["prediction"] for i, q in enumerate(questions)}
    scores = {i: q["score"] for i, q in enumerate(questions)}
    return {k: float(v) for k, v in squad.squad_evaluate(examples, predictions, scores, threshold).items()}


def answers(name, questions, threshold=0.0):
    questions = [{"gold": g, "prediction": p, "score": float(s)} for g, p, s in questions]
    case = {"name": name, "questions": questions, "threshold": threshold, "squad2": squad2(questions, threshold)}
    if all(q["gold"] for q in questions):
        case["squad1"] = squad1(questions)
    return case


TEXTS = ["the", "The", "a", "An", "an apple", "Anna", "a.n.", "th-e end", "the_end", "THE END", "", " ", ".", "...", "--", "'s",
         "Straße", "STRASSE", "ΟΔΥΣΣΕΥΣ", "ΣΑΣ Σ", "İstanbul", "I\u0307stanbul", "à", "a\u0300 b", "naïve café", "x\u00a0y", "x\u3000y\u2009z",
         "x\u200by", "a\x1cb\x1fthe\x85z", "“the” quote", "‘a’", "5½ kg", "٣ apples", "第一 the 章", "the第", "Ǆungla", "ﬁrst", "ẞ", "𝐀 𝐚", "𐐀 deseret",
         "$1,000.50", "U.S.A.", "the the the", "an-a", "a a b", "b a\tb\nthe", "À", "É", "Ⅷ", "ⅷ", "①", "\ufeffthe", "e\u0301 the\u0301"]


def answer_cases():
    yield {"name": "normalize", "texts": [[t, squad.normalize_answer(t)] for t in TEXTS]}
    yield answers("only articles and punctuation", [(["the"], "a", 0), (["."], "", 0), (["The end", "..."], "the", 0), (["!"], "x", 0)])
    yield answers("no answer", [([], "", 1), ([], "x", -1), ([], " the ", -1), (["x"], "", 2), (["x"], "x", 1)])
    yield answers("only questions with an answer", [(["x y"], "x", 0.5), (["x", "y z"], "z y", -0.5)])
    yield answers("only questions without", [([], "", 0.5), ([], "b", 0.25)])
    yield answers("best of several", [(["New York", "New York City", "NYC"], "york city", 0), (["b b c"], "b b b", 0), (["b"], "b b", 0)])
    yield answers("equal no-answer scores", [(["x"], "x", 1), ([], "y", 1), (["x y"], "x", 1), ([], "", 1), (["z"], "z", 1)])
    yield answers("threshold of the official script", [(["x"], "x", 0), ([], "y", 0), ([], "", 0)], 1.0)
    yield answers("one question", [(["x"], "y", 3)])
    rng = random.Random(5)
    words = ["the", "a", "an", "red", "Red", "house", "house.", "of", "Élan", "élan", "人", "1,000", "1000", "-", "O'Neil"]
    phrase = lambda: " ".join(rng.choice(words) for _ in range(rng.randint(0, 4)))
    for i in range(120):
        questions = []
        for _ in range(rng.randint(1, 8)):
            gold = [phrase() for _ in range(rng.choice([0, 1, 1, 3]) if i % 3 else rng.randint(1, 3))]
            prediction = rng.choice(gold) if gold and rng.random() < 0.4 else phrase()
            questions.append((gold, prediction, rng.randint(-8, 8) / 4))
        yield answers(f"random {i}", questions, rng.choice([0.0, 0.5, -1.0]))
    yield answers("random texts", [([rng.choice(TEXTS)], rng.choice(TEXTS), rng.randint(-4, 4)) for _ in range(300)])


write("classification", classification_cases())
write("multi_label", multi_label_cases())
write("regression", regression_cases())
write("entities", entity_cases())
write("answers", answer_cases())
