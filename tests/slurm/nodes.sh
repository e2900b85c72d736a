#!/usr/bin/env bash
# A real Slurm of two nodes on this machine, for tests/nodes: each slurmd is in a network namespace of its own, with an address
# and a loopback of its own, so that 127.0.0.1 of one node is not the other's. As root; it does not touch /etc/slurm.
#   tests/slurm/nodes.sh up|down
# `make test-nodes` calls it. Its slurm.conf is $XP_NODES/slurm.conf (SLURM_CONF).
set -euo pipefail
state=${XP_NODES:-/var/lib/xp-slurm-nodes}
export SLURM_CONF=$state/slurm.conf
bridge=xpnodes
net=10.77.0
pyxis=/opt/xp-pyxis  # of tests/slurm/pyxis.sh

ended() {  # PIDFILE: end that daemon, and wait
  [ -s "$1" ] || return 0
  local pid; pid=$(cat "$1")
  kill "$pid" 2>/dev/null || true
  for _ in $(seq 100); do kill -0 "$pid" 2>/dev/null || break; sleep 0.1; done
  rm -f "$1"
}

down() {
  # Jobs that an ended test has left go while their network is there: without it their steps would hold the nodes.
  if [ -s "$state/slurmctld.pid" ] && kill -0 "$(cat "$state/slurmctld.pid")" 2>/dev/null; then
    scancel --user="$(id -un)" 2>/dev/null || true
    for _ in $(seq 300); do [ -n "$(squeue --noheader 2>/dev/null)" ] || break; sleep 0.2; done
  fi
  for node in 1 2; do ended "$state/slurmd-xp$node.pid"; done
  ended "$state/slurmctld.pid"
  for node in 1 2; do
    # A namespace lives as long as a process in it; its name and its cable do not.
    ip netns del "xp$node" 2>/dev/null || true
    ip link del "$bridge$node" 2>/dev/null || true
  done
  ip link del "$bridge" 2>/dev/null || true
}

network() {
  ip link add "$bridge" type bridge
  ip addr add "$net.254/24" dev "$bridge"
  ip link set "$bridge" up
  for node in 1 2; do
    ip netns add "xp$node"
    ip link add "$bridge$node" type veth peer name eth0 netns "xp$node"
    ip link set "$bridge$node" master "$bridge" up
    ip -n "xp$node" addr add "$net.$node/24" dev eth0
    ip -n "xp$node" link set lo up
    ip -n "xp$node" link set eth0 up
    ip -n "xp$node" route add default via "$net.254"
  done
}

configuration() {
  cat >"$SLURM_CONF" <<EOF
ClusterName=xpnodes
SlurmctldHost=$(hostname -s)($net.254)
SlurmctldPort=6917
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
StateSaveLocation=$state/ctld
SlurmdSpoolDir=$state/spool-%n
SlurmctldPidFile=$state/slurmctld.pid
SlurmdPidFile=$state/slurmd-%n.pid
SlurmctldLogFile=$state/slurmctld.log
SlurmdLogFile=$state/slurmd-%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,batch_sched_delay=0,bf_interval=1
SchedulerType=sched/backfill
JobRequeue=1
MaxArraySize=1001
MinJobAge=300
KillWait=5
# Slurm's own limits are of a few seconds (a batch job that has not begun after 10 s is missing); this machine may be busy.
BatchStartTimeout=600
MessageTimeout=100
UnkillableStepTimeout=600
ReturnToService=2
# More than there are: a test asks for the CPUs of big machines too.
NodeName=xp1 NodeHostname=$(hostname -s) NodeAddr=$net.1 CPUs=16 CoresPerSocket=16 RealMemory=64000 State=UNKNOWN
NodeName=xp2 NodeHostname=$(hostname -s) NodeAddr=$net.2 CPUs=16 CoresPerSocket=16 RealMemory=64000 State=UNKNOWN
PartitionName=main Nodes=xp1,xp2 Default=YES MaxTime=INFINITE State=UP
EOF
}

up() {
  [ "$(sinfo --noheader --format=%T%D 2>/dev/null)" = idle2 ] && exit 0
  down
  mkdir -p "$state/ctld" "$state/spool-xp1" "$state/spool-xp2" /etc/munge /run/munge /var/log/munge /var/lib/munge
  [ -s /etc/munge/munge.key ] || mungekey --create --keyfile /etc/munge/munge.key
  chown -R munge: /etc/munge /run/munge /var/log/munge /var/lib/munge
  chmod 0400 /etc/munge/munge.key
  chmod 0755 /run/munge
  pgrep -x munged >/dev/null || su -s /bin/sh munge -c /usr/sbin/munged
  network
  configuration
  echo CgroupAutomount=no >"$state/cgroup.conf"
  rm -f "$state/plugstack.conf"
  [ ! -e "$pyxis/.done" ] || echo "required $pyxis/lib/slurm/spank_pyxis.so" >"$state/plugstack.conf"
  slurmctld -c -f "$SLURM_CONF"  # a job that an ended test has left does not start again
  for node in 1 2; do PATH="$pyxis/bin:$PATH" nsenter "--net=/run/netns/xp$node" slurmd -f "$SLURM_CONF" -N "xp$node"; done
  for _ in $(seq 1500); do
    [ "$(sinfo --noheader --format=%T%D 2>/dev/null)" = idle2 ] && exit 0
    sleep 0.2
  done
  echo "slurm did not come up: see $state/*.log" >&2
  exit 1
}

case "${1:-up}" in
up) up ;;
down) down ;;
*) echo "usage: $0 up|down" >&2; exit 2 ;;
esac
