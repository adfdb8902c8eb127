#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: gromacs
. "$(dirname "$0")/../lib.sh"
need gmx
cd "$TMP" || exit
export GMX_MAXBACKUP=-1
printf '%s\n' '#include "oplsaa.ff/forcefield.itp"' '#include "oplsaa.ff/spce.itp"' '[ system ]' water '[ molecules ]' >water.top
printf '%s\n' 'integrator = md' 'nsteps = 10' 'nstenergy = 5' 'nstlog = 5' 'nstcalcenergy = 5' 'coulombtype = PME' 'rcoulomb = 0.6' 'rvdw = 0.6' \
  'fourierspacing = 0.14' 'tcoupl = v-rescale' 'tc-grps = System' 'tau-t = 0.1' 'ref-t = 300' 'gen-vel = yes' 'gen-seed = 17' 'ld-seed = 17' \
  'constraints = h-bonds' >water.mdp
gmx solvate -cs spc216.gro -box 2 2 2 -o water.gro -p water.top >log 2>&1 &&
  gmx grompp -f water.mdp -c water.gro -p water.top -o water.tpr -maxwarn 5 >log 2>&1 || fail "no system: $(tail -n 5 log)"
cat >run.sh <<'SH'
gmx mdrun -s water.tpr -ntmpi 4 -ntomp 1 -reprod -nb cpu -pin off -deffnm out >/dev/null 2>out.err
status=$?
grep '^fiberthread: ' out.err >&2
grep -A 7 '^ *Energies (kJ' out.log
cat out.gro
rm -f out.*
exit $status
SH
compare 3 sh run.sh
grep -q Kinetic nptl.out || fail "no energies"
