#!/usr/bin/env python3
"""Train the small SPM vocabulary of tests/data/tok and write it in both of its forms.

usage: gen_spm_fixture.py QUALITY.jsonl OUTDIR       (needs the package sentencepiece; protobuf is not needed)

QUALITY.jsonl: models/tale-9m/quality-400.jsonl of the shared data. Writes spm.gguf (vocabulary only, as the
GGUF converter writes one) and spm/tokenizer.json (as transformers converts a sentencepiece BPE: pairs
sorted by score), spm/tokenizer_config.json, and spm.cases.json with the ids sentencepiece itself gives.
"""
import json, os, struct, sys, tempfile
import sentencepiece as sp

SRC, OUT = sys.argv[1], sys.argv[2]
USER = ['<user>', '<tool>', '\u2581\u2581\u2581\u2581']
CONTROL = ['<|end|>', '<pad>']


def train():
    text = [json.loads(l) for l in open(SRC, encoding='utf-8')]
    lines = [v for r in text for v in r.values() if isinstance(v, str)]
    with tempfile.TemporaryDirectory() as tmp:
        p = os.path.join(tmp, 'in.txt')
        open(p, 'w', encoding='utf-8').write('\n'.join(l for t in lines for l in t.split('\n') if l.strip()))
        sp.SentencePieceTrainer.train(
            input=p, model_prefix=os.path.join(tmp, 'm'), model_type='bpe', vocab_size=1000, byte_fallback=True,
            normalization_rule_name='identity', remove_extra_whitespaces=False, character_coverage=0.9995,
            user_defined_symbols=USER, control_symbols=CONTROL, minloglevel=2, num_threads=1)
        return sp.SentencePieceProcessor(model_file=os.path.join(tmp, 'm.model'))


def gguf(path, kv):
    def s(x):
        b = x.encode()
        return struct.pack('<Q', len(b)) + b

    def val(v):
        if isinstance(v, bool): return struct.pack('<I?', 7, v)
        if isinstance(v, int): return struct.pack('<II', 4, v)
        if isinstance(v, str): return struct.pack('<I', 8) + s(v)
        kind = {str: 8, float: 6, int: 5}[type(v[0])]
        body = b''.join(s(x) if kind == 8 else struct.pack('<f' if kind == 6 else '<i', x) for x in v)
        return struct.pack('<IIQ', 9, kind, len(v)) + body
    with open(path, 'wb') as f:
        f.write(b'GGUF' + struct.pack('<IQQ', 3, 0, len(kv)))
        for k, v in kv.items():
            f.write(s(k) + val(v))


def main():
    m = train()
    n = m.get_piece_size()
    pieces = [m.id_to_piece(i) for i in range(n)]
    kinds = [2 if m.is_unknown(i) else 3 if m.is_control(i) else 6 if m.is_byte(i) else 4 if pieces[i] in USER else 1
             for i in range(n)]
    scores = [float(m.get_score(i)) for i in range(n)]
    gguf(os.path.join(OUT, 'spm.gguf'), {
        'general.architecture': 'llama', 'tokenizer.ggml.model': 'llama', 'tokenizer.ggml.pre': 'default',
        'tokenizer.ggml.tokens': [p.replace('\u2581', ' ') if k == 4 else p for p, k in zip(pieces, kinds)],
        'tokenizer.ggml.scores': scores, 'tokenizer.ggml.token_type': kinds,
        'tokenizer.ggml.bos_token_id': m.bos_id(), 'tokenizer.ggml.eos_token_id': m.eos_id(),
        'tokenizer.ggml.unknown_token_id': m.unk_id(), 'tokenizer.ggml.add_bos_token': True,
        'tokenizer.ggml.add_eos_token': False, 'tokenizer.ggml.add_space_prefix': True})
    vocab = {p: i for i, p in enumerate(pieces)}
    merges = []
    for p, i in vocab.items():
        if kinds[i] != 1:
            continue
        local = [(p[:k], p[k:]) for k in range(1, len(p)) if p[:k] in vocab and p[k:] in vocab]
        local.sort(key=lambda x: (vocab[x[0]], vocab[x[1]]))
        merges += [(a, b, scores[i]) for a, b in local]
    merges.sort(key=lambda x: (x[2], len(x[0]), len(x[1])), reverse=True)
    added = [{'id': i, 'content': p, 'single_word': False, 'lstrip': False, 'rstrip': False, 'normalized': False,
              'special': kinds[i] != 4} for i, p in enumerate(pieces) if kinds[i] in (2, 3, 4)]
    for a in added:
        a['content'] = a['content'].replace('\u2581', ' ') if not a['special'] else a['content']
    for a in added:  # the vocabulary holds the same text
        if pieces[a['id']] != a['content']:
            del vocab[pieces[a['id']]]
            vocab[a['content']] = a['id']
    bos = '<s>'
    tok = {
        'version': '1.0', 'truncation': None, 'padding': None, 'added_tokens': added,
        'normalizer': {'type': 'Sequence', 'normalizers': [
            {'type': 'Prepend', 'prepend': '\u2581'},
            {'type': 'Replace', 'pattern': {'String': ' '}, 'content': '\u2581'}]},
        'pre_tokenizer': None,
        'post_processor': {'type': 'TemplateProcessing', 'single': [
            {'SpecialToken': {'id': bos, 'type_id': 0}}, {'Sequence': {'id': 'A', 'type_id': 0}}],
            'pair': [{'Sequence': {'id': 'A', 'type_id': 0}}, {'Sequence': {'id': 'B', 'type_id': 1}}],
            'special_tokens': {bos: {'id': bos, 'ids': [vocab[bos]], 'tokens': [bos]}}},
        'decoder': {'type': 'Sequence', 'decoders': [
            {'type': 'Replace', 'pattern': {'String': '\u2581'}, 'content': ' '}, {'type': 'ByteFallback'},
            {'type': 'Fuse'}, {'type': 'Strip', 'content': ' ', 'start': 1, 'stop': 0}]},
        'model': {'type': 'BPE', 'dropout': None, 'unk_token': '<unk>', 'continuing_subword_prefix': None,
                  'end_of_word_suffix': None, 'fuse_unk': True, 'byte_fallback': True, 'ignore_merges': False,
                  'vocab': dict(sorted(vocab.items(), key=lambda x: x[1])), 'merges': [[a, b] for a, b, _ in merges]}}
    os.makedirs(os.path.join(OUT, 'spm'), exist_ok=True)
    json.dump(tok, open(os.path.join(OUT, 'spm', 'tokenizer.json'), 'w', encoding='utf-8'), ensure_ascii=False,
              separators=(',', ':'))
    json.dump({'tokenizer_class': 'LlamaTokenizer', 'legacy': True, 'bos_token': {'content': '<s>'},
               'eos_token': '</s>', 'unk_token': '<unk>'},
              open(os.path.join(OUT, 'spm', 'tokenizer_config.json'), 'w'))
    texts = ['Once upon a time, there was a little girl.', ' leading', 'two  spaces', 'four    spaces    here', '',
             'caf\u00e9 na\u00efve \u65e5\u672c\u8a9e \U0001f600', 'line\nbreak\ttab', 'a', 'aaaaaaaaaaaaaaaaaaaaaaaa',
             'The fox said: "Hello!" and ran away...', '12345', 'trailing ', "don't won't", 'XYZ']
    json.dump({'how': 'sentencepiece %s, no BOS' % sp.__version__,
               'cases': [{'text': t, 'ids': m.encode(t)} for t in texts]},
              open(os.path.join(OUT, 'spm.cases.json'), 'w', encoding='utf-8'), ensure_ascii=False, indent=0)


main()
