#!/usr/bin/env python3
"""Write a random-weight GGUF of exactly the Qwen3-0.6B shape, for speed measurements.

usage: make_qwen3.py --type f16|q8_0|q4_0|q4_k_m --tokenizer DIR -o OUT.gguf [--layers 28] [--seed 1]

The file loads in any GGUF runtime (llama.cpp and ik_llama.cpp among them), so the same bytes are
measured on every side. Weights are drawn block by block in the storage format itself, with scales
such that a matrix has a standard deviation near 0.02; nothing is learned, the text is noise.
DIR holds the Qwen3 tokenizer.json. Needs numpy.
"""
import argparse
import json
import struct

import numpy as np

DIM, HEADS, KV, HD, FFN, VOCAB = 1024, 16, 8, 128, 3072, 151936
F32, F16, Q4_0, Q8_0, Q4_K, Q6_K = 0, 1, 2, 8, 12, 14
ALIGN = 32


def half(a):
    return np.asarray(a, dtype=np.float16)


def rows_f32(rng, n):
    return np.ones(n, dtype=np.float32) + rng.standard_normal(n).astype(np.float32) * 0.02


def draw(rng, kind, n):
    """n weights in format `kind`, as bytes."""
    if kind == F16:
        return half(rng.standard_normal(n, dtype=np.float32) * 0.02).tobytes()
    if kind == Q8_0:
        b = np.empty((n // 32, 34), dtype=np.uint8)
        b[:, :2] = half(rng.uniform(0.0004, 0.0006, n // 32)).view(np.uint8).reshape(-1, 2)
        q = np.clip(np.rint(rng.standard_normal((n // 32, 32), dtype=np.float32) * 40), -127, 127)
        b[:, 2:] = q.astype(np.int8).view(np.uint8)
        return b.tobytes()
    if kind == Q4_0:
        b = rng.integers(0, 256, (n // 32, 18), dtype=np.uint8)
        b[:, :2] = half(rng.uniform(0.004, 0.005, n // 32)).view(np.uint8).reshape(-1, 2)
        return b.tobytes()
    if kind == Q4_K:
        b = rng.integers(0, 256, (n // 256, 144), dtype=np.uint8)
        # value = d*sc*q - dmin*m with sc and m near 32 of 63 and q near 7.5: mean about zero
        b[:, 4:16] = 0x20 | (b[:, 4:16] & 0x03)
        d = rng.uniform(0.00012, 0.00016, n // 256)
        b[:, 0:2] = half(d).view(np.uint8).reshape(-1, 2)
        b[:, 2:4] = half(d * 7.5).view(np.uint8).reshape(-1, 2)
        return b.tobytes()
    if kind == Q6_K:
        b = rng.integers(0, 256, (n // 256, 210), dtype=np.uint8)
        b[:, 192:208] = rng.integers(20, 40, (n // 256, 16), dtype=np.uint8)
        b[:, 208:] = half(rng.uniform(0.00003, 0.00005, n // 256)).view(np.uint8).reshape(-1, 2)
        return b.tobytes()
    raise ValueError(kind)


def size(kind, n):
    block, nbytes = {F32: (1, 4), F16: (1, 2), Q8_0: (32, 34), Q4_0: (32, 18), Q4_K: (256, 144),
                     Q6_K: (256, 210)}[kind]
    return n // block * nbytes


def tensors(name, layers):
    """(name, shape as GGUF's ne, type) in file order; Q4_K_M follows llama.cpp's mix."""
    body = {'f16': F16, 'q8_0': Q8_0, 'q4_0': Q4_0, 'q4_k_m': Q4_K}[name]
    head = Q6_K if name == 'q4_k_m' else body
    yield 'token_embd.weight', [DIM, VOCAB], head
    yield 'output_norm.weight', [DIM], F32
    for i in range(layers):
        more = i < layers // 8 or i >= 7 * layers // 8 or (i - layers // 8) % 3 == 2
        better = Q6_K if name == 'q4_k_m' and more else body
        p = 'blk.%d.' % i
        yield p + 'attn_norm.weight', [DIM], F32
        yield p + 'attn_q.weight', [DIM, HEADS * HD], body
        yield p + 'attn_k.weight', [DIM, KV * HD], body
        yield p + 'attn_v.weight', [DIM, KV * HD], better
        yield p + 'attn_q_norm.weight', [HD], F32
        yield p + 'attn_k_norm.weight', [HD], F32
        yield p + 'attn_output.weight', [HEADS * HD, DIM], body
        yield p + 'ffn_norm.weight', [DIM], F32
        yield p + 'ffn_gate.weight', [DIM, FFN], body
        yield p + 'ffn_up.weight', [DIM, FFN], body
        yield p + 'ffn_down.weight', [FFN, DIM], better


def text(s):
    b = s.encode()
    return struct.pack('<Q', len(b)) + b


def kv(key, value):
    head = text(key)
    if isinstance(value, bool):
        return head + struct.pack('<IB', 7, value)
    if isinstance(value, int):
        return head + struct.pack('<II', 4, value)
    if isinstance(value, float):
        return head + struct.pack('<If', 6, value)
    if isinstance(value, str):
        return head + struct.pack('<I', 8) + text(value)
    if value and isinstance(value[0], str):
        return head + struct.pack('<IIQ', 9, 8, len(value)) + b''.join(map(text, value))
    return head + struct.pack('<IIQ', 9, 5, len(value)) + struct.pack('<%di' % len(value), *value)


def vocabulary(folder):
    t = json.load(open(folder + '/tokenizer.json', encoding='utf-8'))
    tokens = ['[PAD%d]' % i for i in range(VOCAB)]
    types = [5] * VOCAB
    for s, i in t['model']['vocab'].items():
        tokens[i], types[i] = s, 1
    for a in t['added_tokens']:
        tokens[a['id']], types[a['id']] = a['content'], 3 if a['special'] else 4
    merges = [m if isinstance(m, str) else ' '.join(m) for m in t['model']['merges']]
    return tokens, types, merges


def main():
    ap = argparse.ArgumentParser(description=__doc__,
                                 formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('--type', required=True, choices=['f16', 'q8_0', 'q4_0', 'q4_k_m'])
    ap.add_argument('--tokenizer', required=True)
    ap.add_argument('-o', '--out', required=True)
    ap.add_argument('--layers', type=int, default=28)
    ap.add_argument('--seed', type=int, default=1)
    a = ap.parse_args()
    tokens, types, merges = vocabulary(a.tokenizer)
    meta = [kv('general.architecture', 'qwen3'), kv('general.name', 'random Qwen3-0.6B shape'),
            kv('general.alignment', ALIGN), kv('qwen3.block_count', a.layers),
            kv('qwen3.context_length', 40960), kv('qwen3.embedding_length', DIM),
            kv('qwen3.feed_forward_length', FFN), kv('qwen3.attention.head_count', HEADS),
            kv('qwen3.attention.head_count_kv', KV), kv('qwen3.attention.key_length', HD),
            kv('qwen3.attention.value_length', HD), kv('qwen3.rope.freq_base', 1000000.0),
            kv('qwen3.attention.layer_norm_rms_epsilon', 1e-6),
            kv('tokenizer.ggml.model', 'gpt2'), kv('tokenizer.ggml.pre', 'qwen2'),
            kv('tokenizer.ggml.tokens', tokens), kv('tokenizer.ggml.token_type', types),
            kv('tokenizer.ggml.merges', merges), kv('tokenizer.ggml.eos_token_id', 151645),
            kv('tokenizer.ggml.padding_token_id', 151643),
            kv('tokenizer.ggml.add_bos_token', False)]
    todo = list(tensors(a.type, a.layers))
    info, offset = b'', 0
    for name, ne, kind in todo:
        info += text(name) + struct.pack('<I%dQIQ' % len(ne), len(ne), *ne, kind, offset)
        offset += -(-size(kind, int(np.prod(ne))) // ALIGN) * ALIGN
    rng = np.random.default_rng(a.seed)
    with open(a.out, 'wb') as f:
        f.write(struct.pack('<4sIQQ', b'GGUF', 3, len(todo), len(meta)) + b''.join(meta) + info)
        f.write(b'\0' * (-f.tell() % ALIGN))
        for name, ne, kind in todo:
            n = int(np.prod(ne))
            f.write(rows_f32(rng, n).tobytes() if kind == F32 else draw(rng, kind, n))
            f.write(b'\0' * (-f.tell() % ALIGN))


if __name__ == '__main__':
    main()
