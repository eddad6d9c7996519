"""Makes the folder files/ beside it: small weight files as PyTorch and TensorFlow write them, which snug's readers must read to
the same tensors.

    python3 tests/golden/make_files.py torch         (needs torch 2.13)
        tensors.zip.bin, tensors.legacy.bin          one state dict in both formats of torch.save: several types, and tensors
                                                     that are transposed, sliced, shared and tied
        tensors.safetensors                          the values in them
        module.bin                                   a whole module, which is code
        small.zip.bin, small.legacy.bin              two tensors, for tests that change every bit
    python3 tests/golden/make_files.py tensorflow    (needs tensorflow 2.21)
        bert_model.ckpt.*, bert_config.json          bert-mlm-tiny as Google's BERT stores itself, with what its optimizer keeps
"""
import collections
import json
import os
import struct
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(HERE, "files")


def make_torch():
    import torch
    from safetensors.torch import save_file
    torch.manual_seed(1)
    matrix, table = torch.randn(5, 7), torch.randn(6, 4)
    cube = torch.randn(2, 3, 4)
    tensors = collections.OrderedDict(
        f32=matrix, f16=torch.randn(3, 2).half(), bf16=torch.randn(9).bfloat16(), f64=torch.randn(4, dtype=torch.float64),
        i64=torch.arange(6).reshape(1, 6), u8=torch.arange(5, dtype=torch.uint8), boolean=torch.tensor([True, False, True]),
        scalar=torch.tensor(2.5), empty=torch.empty(0, 3), one_by_one=torch.randn(1, 1),
        transposed=matrix.t(), rows=matrix[1:4], columns=matrix[:, 2:6], every_second=matrix[::2, ::3],
        transposed_columns=matrix[:, 1:3].t(), permuted=cube.permute(2, 0, 1), permuted_back=cube.permute(1, 2, 0),
        cube_slice=cube[:, 1:, ::2], diagonal=torch.diagonal(table),
        table=table, tied=table, parameter=torch.nn.Parameter(torch.randn(4)))
    tensors["parameter"].requires_grad_(True)
    tensors._metadata = collections.OrderedDict([("", {"version": 1})])  # as a module's state dict has it
    torch.save(tensors, os.path.join(OUT, "tensors.zip.bin"))
    torch.save(tensors, os.path.join(OUT, "tensors.legacy.bin"), _use_new_zipfile_serialization=False)
    save_file({k: v.detach().contiguous().clone() for k, v in tensors.items()}, os.path.join(OUT, "tensors.safetensors"))
    torch.save(torch.nn.Linear(2, 2), os.path.join(OUT, "module.bin"))
    small = {"w": torch.randn(2, 3), "t": torch.randn(3, 2).half().t()}
    torch.save(small, os.path.join(OUT, "small.zip.bin"))
    torch.save(small, os.path.join(OUT, "small.legacy.bin"), _use_new_zipfile_serialization=False)


def read_safetensors(path):
    import numpy as np
    with open(path, "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        data = f.read()
    header.pop("__metadata__", None)
    return {k: np.frombuffer(data[t["data_offsets"][0]:t["data_offsets"][1]], "<f4").reshape(t["shape"])
            for k, t in header.items()}


def google_name(name):
    """The variable's name and whether its matrix is the other way round; as transformers'
    convert_bert_pytorch_checkpoint_to_original_tf.py has it, and for the head as Google's run_pretraining.py."""
    kernel = name.endswith(".weight") and "embeddings" not in name and "LayerNorm" not in name
    if name == "cls.predictions.bias":
        return "cls/predictions/output_bias", False
    for theirs, ours in (("layer.", "layer_"), ("_embeddings.weight", "_embeddings"), (".", "/"),
                         ("LayerNorm/weight", "LayerNorm/gamma"), ("LayerNorm/bias", "LayerNorm/beta")):
        name = name.replace(theirs, ours)
    return (name[:-len("weight")] + "kernel", True) if kernel else (name, False)


def make_tensorflow():
    import numpy as np
    import tensorflow as tf
    v1 = tf.compat.v1
    v1.disable_eager_execution()
    source = os.path.join(HERE, "bert-mlm-tiny")
    values = {}
    for name, array in read_safetensors(os.path.join(source, "model.safetensors")).items():
        google, transposed = google_name(name)
        values[google] = array.T if transposed else array
    values["bert/pooler/dense/bias/adam_m"] = np.ones(36, np.float32)
    values["bert/pooler/dense/bias/adam_v"] = np.ones(36, np.float32)
    values["cls/seq_relationship/output_weights"] = np.arange(72, dtype=np.float32).reshape(2, 36)
    values["cls/seq_relationship/output_bias"] = np.array([0.5, -0.5], np.float32)
    variables = [v1.get_variable(name, initializer=np.ascontiguousarray(value)) for name, value in values.items()]
    variables.append(v1.get_variable("global_step", initializer=np.int64(7)))
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        v1.train.Saver(variables).save(session, os.path.join(OUT, "bert_model.ckpt"), write_meta_graph=False, write_state=False)
    config = json.load(open(os.path.join(source, "config.json")))
    names = ["attention_probs_dropout_prob", "hidden_act", "hidden_dropout_prob", "hidden_size", "initializer_range",
             "intermediate_size", "max_position_embeddings", "num_attention_heads", "num_hidden_layers", "type_vocab_size",
             "vocab_size"]
    with open(os.path.join(OUT, "bert_config.json"), "w") as f:
        json.dump({name: config[name] for name in names}, f, indent=2)


if __name__ == "__main__":
    os.makedirs(OUT, exist_ok=True)
    {"torch": make_torch, "tensorflow": make_tensorflow}[sys.argv[1]]()
