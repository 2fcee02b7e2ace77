#!/usr/bin/env python3
"""Write golden.json of tests/data/golden/own: logits and greedy continuations of the random models of own_model.py
(architectures that golden/arch lacks) from this independent float64 forward pass. Run by hand, never by make.

usage: own.py OUTDIR          needs numpy
"""
import json, math, os, random, sys
import numpy as np
from own_model import CASES, DIM, HD, HEADS, KV, SEED, VOCAB, digests, model

def forward(c, w, ids):
    """Logits [n, vocab] in float64; only the rotary frequencies are float32 values."""
    W = lambda k: w[k].astype(np.float64)
    kind, T = c['model_type'], len(ids)
    gemma = kind == 'gemma2'
    def norm(x, k):
        g = W(k) + (1 if gemma else 0)
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + c['rms_norm_eps']) * g
    x = W('model.embed_tokens.weight')[ids] * (np.float64(np.float32(math.sqrt(DIM))) if gemma else 1)
    e = (np.arange(0, HD, 2).astype(np.float32) / np.float32(HD)).astype(np.float64)
    freq = (np.float32(1) / (10000.0 ** e).astype(np.float32)).astype(np.float64)
    ang = np.arange(T)[:, None] * freq[None]
    cos, sin = np.cos(ang)[:, None], np.sin(ang)[:, None]
    def rot(h):
        a, b = h[..., :HD // 2], h[..., HD // 2:]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)
    act = (lambda z: 0.5 * z * (1 + np.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z ** 3)))) if gemma \
        else (lambda z: z / (1 + np.exp(-z)))
    q_pos, k_pos = np.arange(T)[:, None], np.arange(T)[None]
    for i in range(c['num_hidden_layers']):
        p = 'model.layers.%d.' % i
        h = norm(x, p + 'input_layernorm.weight')
        def proj(name, heads):
            y = h @ W(p + 'self_attn.%s_proj.weight' % name).T
            if kind == 'qwen2_moe': y = y + W(p + 'self_attn.%s_proj.bias' % name)
            return y.reshape(T, heads, HD)
        q, k, v = proj('q', HEADS), proj('k', KV), proj('v', KV)
        if not (kind == 'smollm3' and c['no_rope_layers'][i] == 0): q, k = rot(q), rot(k)
        scale = 1 / math.sqrt(c.get('query_pre_attn_scalar', HD))
        ok = k_pos <= q_pos
        if gemma and i % 2 == 0: ok &= k_pos > q_pos - c['sliding_window']
        out = np.zeros((T, HEADS, HD))
        for a in range(HEADS):
            s = q[:, a] @ k[:, a // (HEADS // KV)].T * scale
            if gemma: s = c['attn_logit_softcapping'] * np.tanh(s / c['attn_logit_softcapping'])
            s = np.where(ok, s, -np.inf)
            s = np.exp(s - s.max(-1, keepdims=True))
            out[:, a] = s / s.sum(-1, keepdims=True) @ v[:, a // (HEADS // KV)]
        y = out.reshape(T, -1) @ W(p + 'self_attn.o_proj.weight').T
        x = x + (norm(y, p + 'post_attention_layernorm.weight') if gemma else y)
        h = norm(x, p + ('pre_feedforward_layernorm.weight' if gemma else 'post_attention_layernorm.weight'))
        def ffn(z, q):
            return (act(z @ W(q + 'gate_proj.weight').T) * (z @ W(q + 'up_proj.weight').T)) @ W(q + 'down_proj.weight').T
        if kind != 'qwen2_moe':
            y = ffn(h, p + 'mlp.')
            x = x + (norm(y, p + 'post_feedforward_layernorm.weight') if gemma else y)
            continue
        r = h @ W(p + 'mlp.gate.weight').T
        r = np.exp(r - r.max(-1, keepdims=True)); r /= r.sum(-1, keepdims=True)
        y = np.zeros_like(x)
        for t in range(T):
            for m in np.argsort(-r[t], kind='stable')[:c['num_experts_per_tok']]:
                y[t] += r[t, m] * ffn(h[t:t + 1], p + 'mlp.experts.%d.' % m)[0]
        g = 1 / (1 + np.exp(-(h @ W(p + 'mlp.shared_expert_gate.weight').T)))
        x = x + y + g * ffn(h, p + 'mlp.shared_expert.')
    x = norm(x, 'model.norm.weight')
    l = x @ W('lm_head.weight' if 'lm_head.weight' in w else 'model.embed_tokens.weight').T
    return c['final_logit_softcapping'] * np.tanh(l / c['final_logit_softcapping']) if gemma else l

def golden(c, w, rng):
    out, least = [], 1e9
    for name, n in (('short', 12), ('long', 70)):
        ids = [int(rng.random() * VOCAB) for _ in range(n)]
        l, cur, greedy, margins = forward(c, w, ids), list(ids), [], []
        for _ in range(12):
            top = forward(c, w, cur)[-1]
            o = np.sort(top)
            margins.append(float(o[-1] - o[-2])); greedy.append(int(top.argmax())); cur.append(greedy[-1])
        least = min(least, *margins)
        at = sorted({0, 7, n // 2, n - 1})
        out.append(dict(name=name, prompt_ids=ids, greedy=greedy, greedy_margin=[float('%.4g' % m) for m in margins],
                        logits_f64={str(i): [float('%.7g' % z) for z in l[i]] for i in at}))
    return dict(source='tests/oracle/own.py, numpy %s, float64' % np.__version__, prompts=out, greedy_min_margin=least)

for name, c in CASES.items():
    d = os.path.join(sys.argv[1], name)
    os.makedirs(d, exist_ok=True)
    tensors, files = model(name)
    w = {k: np.array(t.data, np.float32).reshape(t.shape) for k, t in tensors.items()}
    g = dict(golden(c, w, random.Random(SEED[name] + 100)), sha256=digests(files))
    json.dump(g, open(d + '/golden.json', 'w'), separators=(',', ':'))
    print(name, 'least greedy margin %.3g' % g['greedy_min_margin'],
          'logits std %.2f' % np.std([v for p in g['prompts'] for x in p['logits_f64'].values() for v in x]))
