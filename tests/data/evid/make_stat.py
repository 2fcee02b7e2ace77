#!/usr/bin/env python3
"""Make stat.txt: paired-ratio tables and what scipy says of them, for tests/unit/evid/stat.c.

Run by hand (needs numpy and scipy); the output is committed. One line a table:
  n ratios... | wins sign_num wilcoxon_num hl lo hi
sign_num and wilcoxon_num are one-sided p-values times 2^n; hl, lo and hi are in ppm, from the
floating-point Walsh averages of the logarithms (the integer code may differ by rounding).
"""
import numpy as np
from scipy import stats

W95 = {6: 0, 8: 3, 10: 8, 12: 13, 16: 29, 20: 52}


def main():
    rng = np.random.default_rng(20261129)
    for _ in range(240):
        n = int(rng.choice(list(W95)))
        shift = rng.choice([0.0, 0.01, 0.03, 0.1, -0.02])
        r = np.rint(1e6 * np.exp(shift + 0.03 * rng.standard_normal(n))).astype(np.int64)
        r = np.where(r == 1000000, 1000001, r)
        logs = np.log(r / 1e6)
        if len(set(np.abs(logs))) != n:
            continue
        wins = int((r > 1000000).sum())
        sign = stats.binomtest(wins, n, 0.5, alternative='greater').pvalue * 2**n
        wil = stats.wilcoxon(logs, alternative='greater', method='exact').pvalue * 2**n
        walsh = np.sort([(logs[i] + logs[j]) / 2 for i in range(n) for j in range(i + 1)])
        w, m = W95[n], len(walsh)
        out = [np.median(walsh), walsh[w], walsh[m - 1 - w]]
        print(n, *r, '|', wins, round(sign), round(wil), *(int(round(1e6 * np.exp(v))) for v in out))


main()
