#!/usr/bin/env python3
"""Make tests/data/malformed: one small broken file per rule of the readers. Run by hand.

    make_malformed.py OUTDIR

Standard library only. tests/unit/format/malformed.c names, for each file, the code and the words
of the message it must give. Files called good_* are the base that the others break; they open.
"""
import hashlib
import json
import os
import struct
import sys

U8, I8, U16, I16, U32, I32, F32, BOOL, STR, ARR, U64, I64, F64 = range(13)
FMT = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "B", U64: "Q",
       I64: "q", F64: "d"}


def text(s):
    b = s if isinstance(s, bytes) else s.encode()
    return struct.pack("<Q", len(b)) + b


def value(t, v):
    if t == STR:
        return text(v)
    if t == ARR:
        et, items = v
        return struct.pack("<IQ", et, len(items)) + b"".join(value(et, x) for x in items)
    return struct.pack("<" + FMT[t], v)


def kv(key, t, v):
    return text(key) + struct.pack("<I", t) + value(t, v)


def tensor(name, ne, type_, offset):
    return (text(name) + struct.pack("<I", len(ne)) + b"".join(struct.pack("<Q", d) for d in ne) +
            struct.pack("<IQ", type_, offset))


VOCAB = [
    kv("tokenizer.ggml.model", STR, "gpt2"),
    kv("tokenizer.ggml.tokens", ARR, (STR, ["a", "b", "ab", "<e>"])),
    kv("tokenizer.ggml.scores", ARR, (F32, [0.0, 0.0, -1.0, 0.0])),
    kv("tokenizer.ggml.token_type", ARR, (I32, [1, 1, 1, 3])),
    kv("tokenizer.ggml.merges", ARR, (STR, ["a b"])),
    kv("tokenizer.ggml.eos_token_id", U32, 3),
]
ARCH = [
    kv("general.architecture", STR, "llama"),
    kv("llama.block_count", U32, 2),
    kv("llama.attention.head_count", U32, 4),
    kv("llama.expert_count", U32, 8),
    kv("llama.expert_used_count", U32, 2),
]
TENSORS = [tensor("x", [4, 2], 0, 0), tensor("y", [32], 2, 32)]
DATA = bytes(32) + bytes(18) + bytes(14)


def gguf(keys=None, tensors=None, data=DATA, magic=b"GGUF", version=3, n_keys=None, n_tensors=None,
         align=32, tail=b""):
    keys = ARCH + VOCAB if keys is None else keys
    tensors = TENSORS if tensors is None else tensors
    b = magic + struct.pack("<IQQ", version, len(tensors) if n_tensors is None else n_tensors,
                            len(keys) if n_keys is None else n_keys)
    b += b"".join(keys) + b"".join(tensors)
    b += bytes(-len(b) % align)
    return b + data + tail


def without(key):
    return [k for k in ARCH + VOCAB if not k.startswith(text(key))]


def swap(key, t, v):
    return without(key) + [kv(key, t, v)]


def gguf_files():
    good = gguf()
    yield "good_v3", good
    yield "good_v2", gguf(version=2)
    yield "good_vocab_only", gguf(tensors=[], data=b"")
    yield "good_align_64", gguf(keys=ARCH + VOCAB + [kv("general.alignment", U32, 64)], align=64,
                                tensors=[tensor("x", [4, 2], 0, 0), tensor("y", [32], 2, 64)],
                                data=bytes(64 + 64))
    yield "magic_big_endian", gguf(magic=b"FUGG")
    yield "version_big_endian", gguf(version=0x03000000)
    yield "version_1", gguf(version=1)
    yield "version_4", gguf(version=4)
    yield "cut_magic", good[:6] + b"\0" * 6
    yield "cut_counts", good[:20]
    yield "cut_key", good[:60]
    yield "cut_tensors", good[:len(good) - len(DATA) - 40]
    yield "cut_before_data", gguf(data=b"", align=1)
    yield "cut_data", good[:-32]
    yield "n_keys_huge", gguf(n_keys=1 << 60)
    yield "n_tensors_huge", gguf(n_tensors=1 << 60)
    yield "n_keys_more", gguf(n_keys=len(ARCH + VOCAB) + 1, tensors=[], data=b"", tail=bytes(64))
    yield "key_empty", gguf(keys=[kv("", U32, 1)])
    yield "key_long", gguf(keys=[kv("k" * 65536, U32, 1)])
    yield "key_length_huge", gguf(keys=[struct.pack("<Q", (1 << 63) + 5) + b"abc" + bytes(32)])
    yield "key_binary", gguf(keys=[kv(b"a\x00b", U32, 1)])
    yield "key_twice", gguf(keys=[kv("a.b", U32, 1), kv("a.b", U32, 1)])
    yield "value_type", gguf(keys=[text("a.b") + struct.pack("<I", 13) + bytes(16)])
    yield "value_bool", gguf(keys=[kv("a.b", BOOL, 2)])
    yield "string_huge", gguf(keys=[text("a.b") + struct.pack("<IQ", STR, 1 << 62) + bytes(16)])
    yield "array_huge", gguf(keys=[text("a.b") + struct.pack("<IIQ", ARR, U8, 1 << 62) + bytes(16)])
    yield "array_strings_huge", gguf(keys=[text("a.b") + struct.pack("<IIQ", ARR, STR, 1 << 61) +
                                           bytes(16)])
    yield "array_string_cut", gguf(keys=[text("a.b") + struct.pack("<IIQ", ARR, STR, 2) +
                                         struct.pack("<Q", 1 << 40) + bytes(32)])
    yield "array_nested", gguf(keys=[text("a.b") + struct.pack("<IIQ", ARR, ARR, 1) +
                                     struct.pack("<IQ", U8, 1) + b"\0"])
    yield "array_type", gguf(keys=[text("a.b") + struct.pack("<IIQ", ARR, 99, 1) + bytes(16)])
    yield "array_bool", gguf(keys=[kv("a.b", ARR, (BOOL, [0, 1, 7]))])
    for name, v in (("zero", 0), ("not_power", 48), ("small", 4), ("large", 1 << 21)):
        yield "align_" + name, gguf(keys=[kv("general.alignment", U32, v)])
    yield "align_type", gguf(keys=[kv("general.alignment", STR, "32")])
    yield "dims_0", gguf(tensors=[tensor("x", [], 0, 0)])
    yield "dims_5", gguf(tensors=[tensor("x", [1, 1, 1, 1, 1], 0, 0)])
    yield "dim_zero", gguf(tensors=[tensor("x", [4, 0], 0, 0)])
    yield "dim_overflow", gguf(tensors=[tensor("x", [1 << 32, 1 << 32], 0, 0)])
    yield "bytes_overflow", gguf(tensors=[tensor("x", [1 << 62], 0, 0)])
    yield "row_block", gguf(tensors=[tensor("y", [33], 2, 0)])
    yield "type_unsupported", gguf(tensors=[tensor("blk.0.w", [256], 16, 0)])
    yield "type_unknown", gguf(tensors=[tensor("x", [4], 4711, 0)])
    yield "offset_unaligned", gguf(tensors=[tensor("x", [4, 2], 0, 4)])
    yield "offset_outside", gguf(tensors=[tensor("x", [4, 2], 0, 1 << 40)])
    yield "offset_end", gguf(tensors=[tensor("x", [4, 2], 0, 64)])
    yield "overlap", gguf(tensors=[tensor("x", [4, 4], 0, 0), tensor("y", [32], 2, 32)])
    yield "name_long", gguf(tensors=[tensor("n" * 64, [4], 0, 0)])
    yield "name_empty", gguf(tensors=[tensor("", [4], 0, 0)])
    yield "name_zero_byte", gguf(tensors=[tensor(b"a\x00b", [4], 0, 0)])
    yield "name_twice", gguf(tensors=[tensor("x", [4], 0, 0), tensor("x", [4], 0, 32)])
    yield "arch_type", gguf(keys=swap("general.architecture", U32, 3))
    yield "blocks_huge", gguf(keys=swap("llama.block_count", U32, 1 << 30))
    yield "blocks_zero", gguf(keys=swap("llama.block_count", U32, 0))
    yield "blocks_string", gguf(keys=swap("llama.block_count", STR, "2"))
    yield "blocks_array", gguf(keys=swap("llama.block_count", ARR, (U32, [2])))
    yield "heads_zero", gguf(keys=swap("llama.attention.head_count", U32, 0))
    yield "heads_huge", gguf(keys=swap("llama.attention.head_count", U64, 1 << 40))
    yield "heads_array_short", gguf(keys=swap("llama.attention.head_count", ARR, (U32, [4])))
    yield "heads_array_zero", gguf(keys=swap("llama.attention.head_count", ARR, (I32, [4, 0])))
    yield "heads_array_float", gguf(keys=swap("llama.attention.head_count", ARR, (F32, [4, 4])))
    yield "kv_heads_zero", gguf(keys=ARCH + VOCAB + [kv("llama.attention.head_count_kv", U32, 0)])
    yield "experts_huge", gguf(keys=swap("llama.expert_count", U32, 1 << 20))
    yield "experts_used", gguf(keys=swap("llama.expert_used_count", U32, 9))
    yield "tokens_type", gguf(keys=swap("tokenizer.ggml.tokens", ARR, (U32, [1, 2, 3, 4])))
    yield "scores_length", gguf(keys=swap("tokenizer.ggml.scores", ARR, (F32, [0, 0, 0])))
    yield "scores_type", gguf(keys=swap("tokenizer.ggml.scores", ARR, (U32, [0, 0, 0, 0])))
    yield "token_type_length", gguf(keys=swap("tokenizer.ggml.token_type", ARR, (I32, [1] * 5)))
    yield "token_type_type", gguf(keys=swap("tokenizer.ggml.token_type", ARR, (STR, ["1"] * 4)))
    yield "merge_no_space", gguf(keys=swap("tokenizer.ggml.merges", ARR, (STR, ["ab"])))
    yield "merge_type", gguf(keys=swap("tokenizer.ggml.merges", ARR, (U32, [1])))
    yield "eos_range", gguf(keys=swap("tokenizer.ggml.eos_token_id", U32, 4))
    yield "eos_type", gguf(keys=swap("tokenizer.ggml.eos_token_id", STR, "3"))
    split = [kv("split.no", U16, 0), kv("split.count", U16, 2), kv("split.tensors.count", I32, 2)]
    yield "split_name", gguf(keys=ARCH + VOCAB + split)
    yield "split_count_huge", gguf(keys=ARCH + VOCAB + [kv("split.count", U16, 65535)])
    yield "split_not_first", gguf(keys=[kv("split.no", U16, 1), kv("split.count", U16, 2)])
    yield "split_count_type", gguf(keys=[kv("split.count", STR, "2")])
    nan = struct.pack("<f", float("nan"))
    yield "nan_value", gguf(data=bytes(28) + nan + bytes(32))
    yield "inf_scale", gguf(data=bytes(32) + b"\x00\x7c" + bytes(30))


def split_files():
    def part(no, count, total, tensors, data):
        keys = [kv("split.no", U16, no), kv("split.count", U16, count),
                kv("split.tensors.count", I32, total)]
        return gguf(keys=(ARCH + VOCAB if no == 0 else []) + keys, tensors=tensors, data=data)

    x = ([tensor("x", [4, 2], 0, 0)], bytes(range(32)))
    y = ([tensor("y", [32], 2, 0)], bytes(32))
    cases = {
        "good": (part(0, 2, 2, *x), part(1, 2, 2, *y)),
        "missing": (part(0, 2, 2, *x), None),
        "number": (part(0, 2, 2, *x), part(0, 2, 2, *y)),
        "count": (part(0, 2, 2, *x), part(1, 3, 2, *y)),
        "same_tensor": (part(0, 2, 2, *x), part(1, 2, 2, *x)),
        "total_low": (part(0, 2, 1, *x), part(1, 2, 1, *y)),
        "total_high": (part(0, 2, 3, *x), part(1, 2, 3, *y)),
    }
    for name, parts in cases.items():
        for i, b in enumerate(parts):
            if b is not None:
                yield f"{name}-{i + 1:05d}-of-00002.gguf", b


def st(header, data=bytes(32), length=None):
    h = header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":")).encode()
    h += b" " * (-len(h) % 8)
    return struct.pack("<Q", len(h) if length is None else length) + h + data


def f32(shape, begin, end, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def st_files():
    base = {"__metadata__": {"format": "pt"}, "a": f32([2, 2], 0, 16), "b": f32([4], 16, 32)}
    yield "good", st(base)
    yield "good_scalar", st({"a": f32([], 0, 4)}, bytes(4))
    yield "short", b"abc"
    yield "header_huge", st(base, length=1 << 62)
    yield "header_beyond", st(base, length=100000)
    yield "header_list", st(b"[]")
    yield "header_json", st(b'{"a":')
    yield "twice", st(b'{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]},'
                      b'"a":{"dtype":"F32","shape":[4],"data_offsets":[16,32]}}')
    yield "no_dtype", st({"a": {"shape": [4], "data_offsets": [0, 16]}}, bytes(16))
    yield "dtype_unsupported", st({"a": f32([4], 0, 32, "F64")})
    yield "shape_none", st({"a": {"dtype": "F32", "data_offsets": [0, 16]}}, bytes(16))
    yield "shape_negative", st({"a": f32([-4], 0, 16)}, bytes(16))
    yield "shape_real", st({"a": f32([4.5], 0, 16)}, bytes(16))
    yield "shape_5", st({"a": f32([1, 1, 1, 1, 4], 0, 16)}, bytes(16))
    yield "shape_zero", st({"a": f32([0], 0, 0)}, b"")
    yield "shape_overflow", st({"a": f32([1 << 40, 1 << 40], 0, 16)}, bytes(16))
    yield "offsets_none", st({"a": {"dtype": "F32", "shape": [4]}}, bytes(16))
    yield "offsets_back", st({"a": f32([4], 16, 0)}, bytes(16))
    yield "offsets_size", st({"a": f32([4], 0, 12)}, bytes(12))
    yield "offsets_beyond", st({"a": f32([4], 0, 16)}, bytes(12))
    yield "overlap", st({"a": f32([4], 0, 16), "b": f32([4], 8, 24)}, bytes(24))
    yield "hole", st({"a": f32([4], 0, 16), "b": f32([2], 20, 28)}, bytes(28))
    yield "trailing", st({"a": f32([4], 0, 16)}, bytes(20))
    yield "unaligned", st({"a": f32([1], 0, 2, "F16"), "b": f32([1], 2, 6)}, bytes(6))


CONFIG = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}


def hf_files():
    """Folders: {file: bytes}."""
    def js(o):
        return json.dumps(o).encode()

    good = st({"a": f32([4], 0, 16)}, bytes(range(16)))
    other = st({"b": f32([4], 0, 16)}, bytes(16))
    index = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    both = {"config.json": js(CONFIG), "one.safetensors": good, "two.safetensors": other}

    def sharded(weight_map, **more):
        return {**both, "model.safetensors.index.json": js({"weight_map": weight_map}), **more}

    yield "good", {"config.json": js(CONFIG), "model.safetensors": good,
                   "generation_config.json": js({"eos_token_id": [1, 2]}),
                   "tokenizer.json": js({"model": {"vocab": {"a": 0}}}),
                   "tokenizer_config.json": js({"chat_template": [
                       {"name": "tool_use", "template": "T"},
                       {"name": "default", "template": "D"}]})}
    yield "good_sharded", {**both, "model.safetensors.index.json": js(index),
                           "chat_template.jinja": b"J"}
    yield "good_template_json", {"config.json": js(CONFIG), "model.safetensors": good,
                                 "chat_template.json": js({"chat_template": "C"})}
    yield "empty", {"README": b"nothing here"}
    yield "no_weights", {"config.json": js(CONFIG)}
    yield "pickle", {"config.json": js(CONFIG), "pytorch_model.bin": b"x"}
    yield "config_broken", {"config.json": b'{"a": 1,}', "model.safetensors": good}
    yield "config_list", {"config.json": b"[1]", "model.safetensors": good}
    yield "tokenizer_no_model", {"config.json": js(CONFIG), "model.safetensors": good,
                                 "tokenizer.json": b"{}"}
    yield "index_no_map", {**both, "model.safetensors.index.json": js({"metadata": {}})}
    yield "index_path", sharded({"a": "../one.safetensors"})
    yield "index_missing_file", sharded({"a": "one.safetensors", "b": "three.safetensors"})
    yield "index_wrong_file", sharded({"a": "two.safetensors", "b": "one.safetensors"})
    yield "index_missing_tensor", sharded({"a": "one.safetensors", "c": "two.safetensors"})
    yield "index_fewer", sharded({"a": "one.safetensors"}, **{"one.safetensors": st(
        {"a": f32([4], 0, 16), "z": f32([4], 16, 32)})})
    yield "index_tensor_twice", sharded({"a": "one.safetensors", "b": "two.safetensors"},
                                        **{"two.safetensors": good})


MAGIC = b"HTPK\r\n\x1a\n"


def canon(o):
    return json.dumps(o, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def pack(edit=None, header=None, data=None, version=1, size=None, digest=None, zero=0, length=None):
    """A pack of one blob and three tensors; edit(header) changes the header before it is sealed."""
    blob, w, alt = b"{{ x }}", struct.pack("<8f", *range(8)), bytes(34)
    v = struct.pack("<4f", 1, 2, 3, 4)

    def pad(b):
        return b + bytes(-len(b) % 64)

    body = pad(blob) + pad(w) + pad(v) + pad(alt)

    def item(name, at, b, **more):
        return {"name": name, "offset": at, "bytes": len(b),
                "sha256": hashlib.sha256(b).hexdigest(), **more}

    rows = {"layout": "rows/1"}
    h = {"blobs": [item("template", 0, blob)], "format": "heteropack", "model": {"arch": "llama"},
         "tensors": [item("w", 64, w, dims=[2, 4], rep="", type="f32", **rows),
                     item("n", 128, v, dims=[4], rep="", type="f32", **rows),
                     item("w", 192, alt, dims=[1, 32], rep="q8", type="q8_0", **rows)]}
    if edit:
        edit(h)
    hb = canon(h) if header is None else header
    body = body if data is None else data(body)
    lead = bytes(-(64 + len(hb)) % 64)
    total = 64 + len(hb) + len(lead) + len(body)
    prefix = MAGIC + struct.pack("<IIQQ", version, zero, len(hb) if length is None else length,
                                 total if size is None else size)
    root = hashlib.sha256(prefix + hb).digest() if digest is None else digest
    return prefix + root + hb + lead + body


def pack_files():
    def at(i, key, v):
        return lambda h: h["tensors"][i].__setitem__(key, v)

    yield "good", pack()
    yield "version", pack(version=2)
    yield "reserved", pack(zero=1)
    yield "short", pack()[:40]
    yield "cut", pack()[:-64]
    yield "long", pack() + bytes(64)
    yield "header_length", pack(length=1 << 40)
    yield "digest", pack(digest=bytes(32))
    yield "not_canonical", pack(header=b'{"format": "heteropack"}')
    yield "format", pack(edit=lambda h: h.__setitem__("format", "other"))
    yield "no_model", pack(edit=lambda h: h.pop("model"))
    yield "extra_member", pack(edit=lambda h: h.__setitem__("zzz", 1))
    yield "blobs_type", pack(edit=lambda h: h.__setitem__("blobs", {}))
    yield "tensors_type", pack(edit=lambda h: h.__setitem__("tensors", "x"))
    yield "blob_twice", pack(edit=lambda h: h["blobs"].append(
        {**h["blobs"][0], "offset": 64}))
    yield "name", pack(edit=at(0, "name", ""))
    yield "name_space", pack(edit=at(0, "name", "a b"))
    yield "member", pack(edit=at(0, "more", 1))
    yield "sha256", pack(edit=at(0, "sha256", "XY" * 32))
    yield "offset_type", pack(edit=at(0, "offset", "64"))
    yield "offset_overlap", pack(edit=at(1, "offset", 64))
    yield "offset_hole", pack(edit=at(1, "offset", 256))
    yield "bytes_beyond", pack(edit=at(2, "bytes", 1 << 40))
    yield "bytes_shape", pack(edit=at(0, "dims", [2, 5]))
    yield "type", pack(edit=at(0, "type", "q9_9"))
    yield "layout", pack(edit=at(0, "layout", "tile/7"))
    yield "layout_old", pack(edit=lambda h: h["tensors"][0].update(type="q6_k", layout="r16/1"))
    yield "layout_vector", pack(edit=at(1, "layout", "r16/1"))
    yield "rep", pack(edit=at(0, "rep", "a-name-that-is-too-long"))
    yield "dims", pack(edit=at(0, "dims", []))
    yield "dims_zero", pack(edit=at(0, "dims", [0, 4]))
    yield "dims_overflow", pack(edit=at(0, "dims", [1 << 50, 1 << 50]))
    yield "twice", pack(edit=at(1, "name", "w"))
    yield "rep_alone", pack(edit=at(2, "name", "q"))
    yield "trailing", pack(data=lambda b: b + bytes(64))
    # These open; verifying finds them.
    yield "verify_tensor", pack(data=lambda b: b[:70] + b"\x01" + b[71:])
    yield "verify_blob", pack(data=lambda b: b"X" + b[1:])
    yield "verify_padding", pack(data=lambda b: b[:60] + b"\x01" + b[61:])
    yield "verify_padding_end", pack(data=lambda b: b[:-1] + b"\x01")


TOKJSON = {
    "good": b'{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}',
    "no_model": b'{"added_tokens": []}',
    "no_vocab": b'{"model": {"type": "BPE"}}',
    "broken": b'{"model": {"vocab": {"a": 0,}}}',
    "cut": b'{"model": {"vocab": {"a": 0',
    "twice": b'{"model": {"vocab": {"a": 0, "a": 1}}}',
    "utf8": b'{"model": {"vocab": {"\xff": 0}}}',
    "deep": b'{"model": ' + b"[" * 5000 + b"]" * 5000 + b"}",
}


def main():
    out = sys.argv[1]

    def put(path, b):
        path = os.path.join(out, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as f:
            f.write(b)

    for name, b in gguf_files():
        put(f"gguf/{name}.gguf", b)
    for name, b in split_files():
        put(f"split/{name}", b)
    for name, b in st_files():
        put(f"safetensors/{name}/model.safetensors", b)
        put(f"safetensors/{name}/config.json", b"{}")
    for name, files in hf_files():
        for file, b in files.items():
            put(f"hf/{name}/{file}", b)
    for name, b in pack_files():
        put(f"pack/{name}.htpack", b)
    for name, b in TOKJSON.items():
        put(f"tokjson/{name}.json", b)
    put("other/text.txt", b"This is no model at all.\n")
    put("other/tiny", b"GGUF")
    put("other/one.safetensors", st({"a": f32([4], 0, 16)}, bytes(16)))


main()
