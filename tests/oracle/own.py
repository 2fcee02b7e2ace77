#!/usr/bin/env python3
"""Write tests/data/golden/own: tiny random models of architectures that golden/arch lacks, with logits and
greedy continuations from this independent float64 forward pass. Run by hand, never by make.

usage: own.py OUTDIR          needs numpy

Written from the model cards and papers: SmolLM3 (no rotation in every fourth layer), Gemma 2 (alternating
windows, soft caps on scores and logits, norms before and after each half of a layer, factors 1 + w),
Qwen1.5/2-MoE (raw soft-max weights of the chosen experts, a shared expert behind a sigmoid gate).
Caps, windows and scales are chosen small so that leaving any of them out shows. Weights are seeded noise.
"""
import json, math, os, struct, sys
import numpy as np

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

def weights(c, rng):
    """Hugging Face names to float32 arrays."""
    w, n = {}, lambda *s: (rng.standard_normal(s) * 1.6 / math.sqrt(s[-1])).astype(np.float32)
    gemma = c['model_type'] == 'gemma2'
    v = lambda k: ((0.0 if gemma else 1.0) + 0.3 * rng.standard_normal(k)).astype(np.float32)
    w['model.embed_tokens.weight'] = (rng.standard_normal((VOCAB, DIM)) * 0.4).astype(np.float32)
    for i in range(c['num_hidden_layers']):
        p = 'model.layers.%d.' % i
        w[p + 'input_layernorm.weight'] = v(DIM)
        w[p + 'post_attention_layernorm.weight'] = v(DIM)
        if gemma:
            w[p + 'pre_feedforward_layernorm.weight'], w[p + 'post_feedforward_layernorm.weight'] = v(DIM), v(DIM)
        for name, rows in (('q', HEADS * HD), ('k', KV * HD), ('v', KV * HD)):
            w[p + 'self_attn.%s_proj.weight' % name] = n(rows, DIM)
            if c['model_type'] == 'qwen2_moe':
                w[p + 'self_attn.%s_proj.bias' % name] = (0.5 * rng.standard_normal(rows)).astype(np.float32)
        w[p + 'self_attn.o_proj.weight'] = n(DIM, HEADS * HD)
        if 'num_experts' in c:
            ff = c['moe_intermediate_size']
            w[p + 'mlp.gate.weight'] = n(c['num_experts'], DIM)
            for e in range(c['num_experts']):
                for name, s in (('gate', (ff, DIM)), ('up', (ff, DIM)), ('down', (DIM, ff))):
                    w[p + 'mlp.experts.%d.%s_proj.weight' % (e, name)] = n(*s)
            sf = c['shared_expert_intermediate_size']
            for name, s in (('gate', (sf, DIM)), ('up', (sf, DIM)), ('down', (DIM, sf))):
                w[p + 'mlp.shared_expert.%s_proj.weight' % name] = n(*s)
            w[p + 'mlp.shared_expert_gate.weight'] = n(1, DIM)
        else:
            for name, s in (('gate', (FFN, DIM)), ('up', (FFN, DIM)), ('down', (DIM, FFN))):
                w[p + 'mlp.%s_proj.weight' % name] = n(*s)
    w['model.norm.weight'] = v(DIM)
    if c.get('tie_word_embeddings') is False: w['lm_head.weight'] = n(VOCAB, DIM) * np.float32(2)
    return w

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
        ids = [int(t) for t in rng.integers(0, VOCAB, n)]
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

def write_safetensors(path, w):
    head, at, body = {'__metadata__': {'format': 'pt'}}, 0, []
    for k in sorted(w):
        b = w[k].tobytes(); head[k] = dict(dtype='F32', shape=list(w[k].shape), data_offsets=[at, at + len(b)])
        at += len(b); body.append(b)
    h = json.dumps(head, separators=(',', ':')).encode(); h += b' ' * (-len(h) % 8)
    open(path, 'wb').write(struct.pack('<Q', len(h)) + h + b''.join(body))

def gguf_tensors(c, w):
    gemma, out = c['model_type'] == 'gemma2', {}
    m = {'input_layernorm.weight': 'attn_norm.weight', 'self_attn.o_proj.weight': 'attn_output.weight',
         'post_attention_layernorm.weight': 'post_attention_norm.weight' if gemma else 'ffn_norm.weight',
         'pre_feedforward_layernorm.weight': 'ffn_norm.weight', 'post_feedforward_layernorm.weight': 'post_ffw_norm.weight',
         'mlp.gate.weight': 'ffn_gate_inp.weight', 'mlp.shared_expert_gate.weight': 'ffn_gate_inp_shexp.weight'}
    for n in 'qkv':
        for s in ('weight', 'bias'): m['self_attn.%s_proj.%s' % (n, s)] = 'attn_%s.%s' % (n, s)
    for n in ('gate', 'up', 'down'):
        m['mlp.%s_proj.weight' % n] = 'ffn_%s.weight' % n
        m['mlp.shared_expert.%s_proj.weight' % n] = 'ffn_%s_shexp.weight' % n
    top = {'model.embed_tokens.weight': 'token_embd.weight', 'model.norm.weight': 'output_norm.weight',
           'lm_head.weight': 'output.weight'}
    for k, a in w.items():
        if gemma and k.endswith('norm.weight'): a = a + np.float32(1)
        if k in top: out[top[k]] = a; continue
        i, rest = k[len('model.layers.'):].split('.', 1)
        if '.experts.' in k: continue
        if c['model_type'] == 'smollm3' and rest.split('.')[1][:2] in ('q_', 'k_'):   # adjacent pairs, as Llama's
            h = a.shape[0] // HD
            a = a.reshape(h, 2, HD // 2, *a.shape[1:]).swapaxes(1, 2).reshape(a.shape)
        if rest == 'mlp.shared_expert_gate.weight': a = a[0]
        out['blk.%s.%s' % (i, m[rest])] = a
    for i in range(c['num_hidden_layers'] if 'num_experts' in c else 0):
        for n in ('gate', 'up', 'down'):
            out['blk.%d.ffn_%s_exps.weight' % (i, n)] = np.stack(
                [w['model.layers.%d.mlp.experts.%d.%s_proj.weight' % (i, e, n)] for e in range(c['num_experts'])])
    return out

def write_gguf(path, c, w):
    arch = {'qwen2_moe': 'qwen2moe'}.get(c['model_type'], c['model_type'])
    kv, s = [], lambda t: struct.pack('<Q', len(t)) + t.encode()
    u = lambda k, v: kv.append(s(arch + '.' + k) + struct.pack('<II', 4, v))
    f = lambda k, v: kv.append(s(arch + '.' + k) + struct.pack('<If', 6, v))
    kv.append(s('general.architecture') + struct.pack('<I', 8) + s(arch))
    u('block_count', c['num_hidden_layers']); u('embedding_length', DIM); u('context_length', CTX)
    u('feed_forward_length', FFN); u('attention.head_count', HEADS); u('attention.head_count_kv', KV)
    u('attention.key_length', HD); u('attention.value_length', HD); u('rope.dimension_count', HD)
    f('attention.layer_norm_rms_epsilon', c['rms_norm_eps']); f('rope.freq_base', c['rope_theta'])
    if arch == 'gemma2':
        u('attention.sliding_window', c['sliding_window'])
        f('attn_logit_softcapping', c['attn_logit_softcapping']); f('final_logit_softcapping', c['final_logit_softcapping'])
    if 'num_experts' in c:
        u('expert_count', c['num_experts']); u('expert_used_count', c['num_experts_per_tok'])
        u('expert_feed_forward_length', c['moe_intermediate_size'])
        u('expert_shared_feed_forward_length', c['shared_expert_intermediate_size'])
    ts, info, body, at = gguf_tensors(c, w), b'', [], 0
    for k, a in ts.items():
        b = np.ascontiguousarray(a).tobytes(); b += b'\0' * (-len(b) % 32)
        info += s(k) + struct.pack('<I', a.ndim) + b''.join(struct.pack('<Q', d) for d in a.shape[::-1]) + struct.pack('<IQ', 0, at)
        at += len(b); body.append(b)
    h = b'GGUF' + struct.pack('<IQQ', 3, len(ts), len(kv)) + b''.join(kv) + info
    open(path, 'wb').write(h + b'\0' * (-len(h) % 32) + b''.join(body))

for name, c in CASES.items():
    d = os.path.join(sys.argv[1], name)
    os.makedirs(d, exist_ok=True)
    rng = np.random.default_rng(SEED[name])
    w = weights(c, rng)
    g = golden(c, w, rng)
    json.dump(c, open(d + '/config.json', 'w'), indent=1, sort_keys=True)
    json.dump(g, open(d + '/golden.json', 'w'), separators=(',', ':'))
    write_safetensors(d + '/model.safetensors', w)
    write_gguf(d + '/model.gguf', c, w)
    print(name, 'least greedy margin %.3g' % g['greedy_min_margin'],
          'logits std %.2f' % np.std([v for p in g['prompts'] for x in p['logits_f64'].values() for v in x]))
