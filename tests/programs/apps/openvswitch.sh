#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: procps openvswitch-switch
# Flows, packets and ports of a switch in user space. Its numbers of threads change while it runs.
. "$(dirname "$0")/../lib.sh"
need ovs-vswitchd
cd "$TMP"
export OVS_RUNDIR=$TMP OVS_LOGDIR=$TMP OVS_DBDIR=$TMP
db=unix:$TMP/db.sock
v() { timeout 60 ovs-vsctl --db=$db "$@"; }
ctl() { timeout 60 ovs-appctl -t "$TMP/$1.ctl" "${@:2}"; }
of() { timeout 60 ovs-ofctl "$1" "unix:$TMP/br0.mgmt" "${@:2}"; }
for ((i = 0; i < 500; i++)); do echo "priority=10,ip,nw_dst=10.0.$((i / 250)).$((i % 250)),actions=output:$((i % 7 + 2))"; done >flows
trap 'kill -9 $database $(pgrep -f "unixctl=$TMP/switch.ctl") 2>/dev/null' EXIT
run() {
  rm -f conf.db ./*.sock ./*.ctl
  ovsdb-tool create conf.db /usr/share/openvswitch/vswitch.ovsschema
  ovsdb-server conf.db --remote="p$db" --unixctl="$TMP/db.ctl" --no-chdir -vconsole:off &
  database=$!
  for ((i = 0; i < 300; i++)); do v --no-wait init 2>/dev/null && break; sleep 0.1; done
  v --no-wait set Open_vSwitch . other_config:n-handler-threads=4 other_config:n-revalidator-threads=4
  "$@" ovs-vswitchd $db --enable-dummy=override --disable-system --unixctl="$TMP/switch.ctl" --no-chdir -vconsole:off 2>errors &
  job=$!
  v add-br br0 -- set bridge br0 datapath_type=dummy fail-mode=secure
  v $(for ((i = 1; i <= 8; i++)); do echo "-- add-port br0 p$i -- set interface p$i type=dummy ofport_request=$i"; done)
  of add-flows flows
  of dump-flows --no-stats | sort | cksum
  for threads in 4 2 6; do
    v set Open_vSwitch . other_config:n-handler-threads=$threads other_config:n-revalidator-threads=$threads
    packets=()
    for ((i = 0; i < 40; i++)); do
      packets[i]="in_port(1),eth(src=50:54:00:00:00:09,dst=50:54:00:00:00:0a),eth_type(0x0800),ipv4(src=192.168.0.$threads,dst=10.0.1.$i,proto=6,tos=0,ttl=64,frag=no),tcp(src=8,dst=80)"
    done
    ctl switch netdev-dummy/receive p1 "${packets[@]}"
    ctl switch revalidator/wait
  done
  counts() { of dump-ports | grep -oE '[rt]x pkts=[0-9]+'; }
  for ((i = 0; i < 300; i++)); do [ "$(counts | awk -F= '/tx/ {n += $2} END {print n}')" -ge 120 ] && break; sleep 0.1; done # they come late
  counts
  for i in 1 7 39; do ctl switch ofproto/trace br0 in_port=1,ip,nw_dst=10.0.1.$i | tail -n 1; done
  v del-port br0 p1 -- del-port br0 p3 -- del-port br0 p8
  v list-ports br0
  v del-br br0
  ctl switch exit
  wait $job
  echo "status $?"
  ctl db exit
  wait $database
}
run env >expected
grep -q 'tx pkts=' expected && grep -qx 'status 0' expected || fail "on NPTL: $(cat expected errors)"
for workers in 1 2 16; do
  run fiber $workers >got
  diff expected got || fail "output differs on $workers workers: $(cat errors)"
  made_fibers 12
done
