#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: pari-gp
. "$(dirname "$0")/../lib.sh"
need gp
cat >"$TMP/threads.gp" <<'GP'
default(nbthreads, 6);
print(parapply(n -> sum(k = 1, 2000, eulerphi(n * k)), [1..24]));
print(parsum(i = 1, 2000, moebius(i)));
f(x) = factor(2^x - 1);
export(f);
print(parvector(40, i, f(20 + i)));
s = 0; parfor(i = 1, 500, i^2, r, s += r); print(s);
print(parselect(isprime, [1..3000])[-1]);
print(iferr(parapply(n -> 1 / (n - 7), [1..20]), e, errname(e)));
GP
compare 20 gp -q -f "$TMP/threads.gp"
grep -q e_INV "$TMP/nptl.out" || fail "not all lines"
