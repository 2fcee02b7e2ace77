#!/usr/bin/env python3
"""Write the tiny random models of tests/data/golden/own, whose logits are there: config.json, model.safetensors and
model.gguf of each. The tree keeps what another implementation computed from them, not the noise itself.

usage: own_model.py OUTDIR          Python's standard library only; run by make before every use: what is there and
                                    as it should be stays, what is missing or damaged is written

Written from the model cards and papers: SmolLM3 (no rotation in every fourth layer), Gemma 2 (alternating
windows, soft caps on scores and logits, norms before and after each half of a layer, factors 1 + w),
Qwen1.5/2-MoE (raw soft-max weights of the chosen experts, a shared expert behind a sigmoid gate).
Caps, windows and scales are chosen small so that leaving any of them out shows. Weights are seeded noise: sums of
twelve numbers of random.random(), whose sequence Python promises, so that every machine has the same bytes.
golden.json says their digests; files that would differ are not written.
"""
import array
import hashlib
import json
import math
import os
import random
import shutil
import struct
import sys

DIM, HEADS, KV, HD, FFN, VOCAB, CTX = 48, 4, 2, 16, 80, 96, 256
COMMON = dict(hidden_size=DIM, num_attention_heads=HEADS, num_key_value_heads=KV, head_dim=HD,
              intermediate_size=FFN, vocab_size=VOCAB, max_position_embeddings=CTX, rms_norm_eps=1e-5,
              rope_theta=10000.0)
CASES = {
    'smollm3': dict(COMMON, model_type='smollm3', num_hidden_layers=5, hidden_act='silu',
                    no_rope_layers=[1, 1, 1, 0, 1], tie_word_embeddings=True),
    'gemma2': dict(COMMON, model_type='gemma2', num_hidden_layers=4, hidden_activation='gelu_pytorch_tanh',
                   sliding_window=8, attn_logit_softcapping=3.0, final_logit_softcapping=5.0,
                   query_pre_attn_scalar=HD),
    'qwen2_moe': dict(COMMON, model_type='qwen2_moe', num_hidden_layers=3, hidden_act='silu', num_experts=6,
                      num_experts_per_tok=2, moe_intermediate_size=32, shared_expert_intermediate_size=64,
                      norm_topk_prob=False, tie_word_embeddings=False),
}
SEED = {'smollm3': 31, 'gemma2': 32, 'qwen2_moe': 43}
GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'data', 'golden', 'own')


class Tensor:
    """float32 numbers and their shape, slowest first."""

    def __init__(self, shape, data):
        self.shape, self.data = tuple(shape), array.array('f', data)

    def bytes(self):
        a = self.data
        if sys.byteorder != 'little':
            a = array.array('f', a)
            a.byteswap()
        return a.tobytes()


class Noise:
    def __init__(self, seed):
        self.random = random.Random(seed).random

    def normal(self, *shape, scale=1.0, mean=0.0):
        r = self.random
        return Tensor(shape, [mean + scale * (sum(r() for _ in range(12)) - 6) for _ in range(math.prod(shape))])


def weights(c, noise):
    """Hugging Face names to tensors."""
    w = {}
    gemma = c['model_type'] == 'gemma2'

    def matrix(*s, times=1.0):
        return noise.normal(*s, scale=times * 1.6 / math.sqrt(s[-1]))

    def vector(k):
        return noise.normal(k, scale=0.3, mean=0.0 if gemma else 1.0)

    w['model.embed_tokens.weight'] = noise.normal(VOCAB, DIM, scale=0.4)
    for i in range(c['num_hidden_layers']):
        p = 'model.layers.%d.' % i
        w[p + 'input_layernorm.weight'] = vector(DIM)
        w[p + 'post_attention_layernorm.weight'] = vector(DIM)
        if gemma:
            for name in ('pre', 'post'):
                w[p + name + '_feedforward_layernorm.weight'] = vector(DIM)
        for name, rows in (('q', HEADS * HD), ('k', KV * HD), ('v', KV * HD)):
            w[p + 'self_attn.%s_proj.weight' % name] = matrix(rows, DIM)
            if c['model_type'] == 'qwen2_moe':
                w[p + 'self_attn.%s_proj.bias' % name] = noise.normal(rows, scale=0.5)
        w[p + 'self_attn.o_proj.weight'] = matrix(DIM, HEADS * HD)
        if 'num_experts' in c:
            w[p + 'mlp.gate.weight'] = matrix(c['num_experts'], DIM)
            parts = [('mlp.experts.%d' % e, c['moe_intermediate_size']) for e in range(c['num_experts'])]
            parts.append(('mlp.shared_expert', c['shared_expert_intermediate_size']))
            w[p + 'mlp.shared_expert_gate.weight'] = matrix(1, DIM)
        else:
            parts = [('mlp', FFN)]
        for part, ff in parts:
            for name, s in (('gate', (ff, DIM)), ('up', (ff, DIM)), ('down', (DIM, ff))):
                w[p + '%s.%s_proj.weight' % (part, name)] = matrix(*s)
    w['model.norm.weight'] = vector(DIM)
    if c.get('tie_word_embeddings') is False:
        w['lm_head.weight'] = matrix(VOCAB, DIM, times=2)
    return w


def safetensors(w):
    head, at, body = {'__metadata__': {'format': 'pt'}}, 0, []
    for k in sorted(w):
        b = w[k].bytes()
        head[k] = dict(dtype='F32', shape=list(w[k].shape), data_offsets=[at, at + len(b)])
        at += len(b)
        body.append(b)
    h = json.dumps(head, separators=(',', ':')).encode()
    h += b' ' * (-len(h) % 8)
    return struct.pack('<Q', len(h)) + h + b''.join(body)


def adjacent(t):
    """Rows of a head from two halves to adjacent pairs, as Llama's GGUF has them for its rotation."""
    cols, row = t.shape[1], {}
    for h in range(t.shape[0] // HD):
        for half in range(2):
            for k in range(HD // 2):
                row[h * HD + 2 * k + half] = h * HD + half * (HD // 2) + k
    return Tensor(t.shape, [x for r in range(t.shape[0]) for x in t.data[row[r] * cols:(row[r] + 1) * cols]])


def gguf_tensors(c, w):
    gemma, out = c['model_type'] == 'gemma2', {}
    m = {'input_layernorm.weight': 'attn_norm.weight', 'self_attn.o_proj.weight': 'attn_output.weight',
         'post_attention_layernorm.weight': 'post_attention_norm.weight' if gemma else 'ffn_norm.weight',
         'pre_feedforward_layernorm.weight': 'ffn_norm.weight', 'post_feedforward_layernorm.weight': 'post_ffw_norm.weight',
         'mlp.gate.weight': 'ffn_gate_inp.weight', 'mlp.shared_expert_gate.weight': 'ffn_gate_inp_shexp.weight'}
    for n in 'qkv':
        for s in ('weight', 'bias'):
            m['self_attn.%s_proj.%s' % (n, s)] = 'attn_%s.%s' % (n, s)
    for n in ('gate', 'up', 'down'):
        m['mlp.%s_proj.weight' % n] = 'ffn_%s.weight' % n
        m['mlp.shared_expert.%s_proj.weight' % n] = 'ffn_%s_shexp.weight' % n
    top = {'model.embed_tokens.weight': 'token_embd.weight', 'model.norm.weight': 'output_norm.weight',
           'lm_head.weight': 'output.weight'}
    for k, t in w.items():
        if gemma and k.endswith('norm.weight'):
            t = Tensor(t.shape, [x + 1 for x in t.data])
        if k in top:
            out[top[k]] = t
            continue
        i, rest = k[len('model.layers.'):].split('.', 1)
        if '.experts.' in k:
            continue
        if c['model_type'] == 'smollm3' and rest.split('.')[1][:2] in ('q_', 'k_'):
            t = adjacent(t)
        if rest == 'mlp.shared_expert_gate.weight':
            t = Tensor(t.shape[1:], t.data)
        out['blk.%s.%s' % (i, m[rest])] = t
    for i in range(c['num_hidden_layers'] if 'num_experts' in c else 0):
        for n in ('gate', 'up', 'down'):
            one = [w['model.layers.%d.mlp.experts.%d.%s_proj.weight' % (i, e, n)] for e in range(c['num_experts'])]
            out['blk.%d.ffn_%s_exps.weight' % (i, n)] = Tensor((len(one), *one[0].shape), [x for t in one for x in t.data])
    return out


def gguf(c, w):
    arch = {'qwen2_moe': 'qwen2moe'}.get(c['model_type'], c['model_type'])
    kv = []

    def s(t):
        return struct.pack('<Q', len(t)) + t.encode()

    def u(k, v):
        kv.append(s(arch + '.' + k) + struct.pack('<II', 4, v))

    def f(k, v):
        kv.append(s(arch + '.' + k) + struct.pack('<If', 6, v))

    kv.append(s('general.architecture') + struct.pack('<I', 8) + s(arch))
    for k, v in (('block_count', c['num_hidden_layers']), ('embedding_length', DIM), ('context_length', CTX),
                 ('feed_forward_length', FFN), ('attention.head_count', HEADS), ('attention.head_count_kv', KV),
                 ('attention.key_length', HD), ('attention.value_length', HD), ('rope.dimension_count', HD)):
        u(k, v)
    f('attention.layer_norm_rms_epsilon', c['rms_norm_eps'])
    f('rope.freq_base', c['rope_theta'])
    if arch == 'gemma2':
        u('attention.sliding_window', c['sliding_window'])
        f('attn_logit_softcapping', c['attn_logit_softcapping'])
        f('final_logit_softcapping', c['final_logit_softcapping'])
    if 'num_experts' in c:
        u('expert_count', c['num_experts'])
        u('expert_used_count', c['num_experts_per_tok'])
        u('expert_feed_forward_length', c['moe_intermediate_size'])
        u('expert_shared_feed_forward_length', c['shared_expert_intermediate_size'])
    ts, info, body, at = gguf_tensors(c, w), b'', [], 0
    for k, t in ts.items():
        b = t.bytes()
        b += b'\0' * (-len(b) % 32)
        info += s(k) + struct.pack('<I', len(t.shape)) + b''.join(struct.pack('<Q', d) for d in t.shape[::-1])
        info += struct.pack('<IQ', 0, at)
        at += len(b)
        body.append(b)
    h = b'GGUF' + struct.pack('<IQQ', 3, len(ts), len(kv)) + b''.join(kv) + info
    return h + b'\0' * (-len(h) % 32) + b''.join(body)


def digests(files):
    return {k: hashlib.sha256(b).hexdigest() for k, b in sorted(files.items())}


def model(name):
    """Weights of a case, and its files by name."""
    c = CASES[name]
    w = weights(c, Noise(SEED[name]))
    return w, {'config.json': json.dumps(c, indent=1, sort_keys=True).encode(), 'model.safetensors': safetensors(w),
               'model.gguf': gguf(c, w)}


def intact(folder, golden, want):
    """Whether the folder has every file, none of them damaged or older than this script."""
    def read(name):
        with open(os.path.join(folder, name), 'rb') as f:
            return f.read()
    try:
        with open(golden, 'rb') as f:
            same = f.read() == read('golden.json') and digests({k: read(k) for k in want}) == want
        return same and min(os.path.getmtime(os.path.join(folder, k)) for k in want) >= os.path.getmtime(__file__)
    except FileNotFoundError:
        return False


def main(out):
    for name in CASES:
        folder, golden = os.path.join(out, name), os.path.join(GOLDEN, name, 'golden.json')
        with open(golden) as f:
            want = json.load(f)['sha256']
        if intact(folder, golden, want):
            continue
        print('  own_model.py: writes %s' % folder, flush=True)
        _, files = model(name)
        if digests(files) != want:
            sys.exit('own_model.py: %s: other bytes than golden.json was computed from' % name)
        os.makedirs(folder, exist_ok=True)
        for k, b in files.items():
            with open(os.path.join(folder, k), 'wb') as f:
                f.write(b)
        shutil.copy(golden, os.path.join(folder, 'golden.json'))


if __name__ == '__main__':
    if len(sys.argv) != 2 or sys.argv[1].startswith('-'):
        print(__doc__.strip(), file=sys.stdout if sys.argv[1:] in (['-h'], ['--help']) else sys.stderr)
        sys.exit(0 if sys.argv[1:] in (['-h'], ['--help']) else 2)
    main(sys.argv[1])
