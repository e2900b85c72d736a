#!/usr/bin/env bash
# A real Slurm of one node on this machine, for the tests: munge, slurmctld and slurmd from Debian, as root.
#   apt-get install -y --no-install-recommends slurmctld slurmd slurm-client munge
#   tests/slurm/setup.sh [GPUS]      # that many GPUs that are only files; 8 unless given
# `make slurm` does both. Ends when `sinfo` says idle.
set -euo pipefail
gpus=${1:-8}
node=$(hostname -s)
state=/var/lib/xp-slurm
mkdir -p "$state/spool" "$state/ctld" "$state/gpus" /etc/slurm /run/munge /var/log/munge /var/lib/munge /etc/munge

[ -s /etc/munge/munge.key ] || mungekey --create --keyfile /etc/munge/munge.key
chown -R munge: /etc/munge /run/munge /var/log/munge /var/lib/munge
chmod 0400 /etc/munge/munge.key
chmod 0755 /run/munge
pgrep -x munged >/dev/null || su -s /bin/sh munge -c /usr/sbin/munged

for number in $(seq 0 $((gpus - 1))); do : >"$state/gpus/$number"; done
cat >/etc/slurm/gres.conf <<EOF
NodeName=$node Name=gpu File=$state/gpus/[0-$((gpus - 1))]
EOF
cat >/etc/slurm/cgroup.conf <<EOF
CgroupAutomount=no
EOF
cat >/etc/slurm/slurm.conf <<EOF
ClusterName=xp
SlurmctldHost=$node(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
StateSaveLocation=$state/ctld
SlurmdSpoolDir=$state/spool
SlurmctldPidFile=$state/slurmctld.pid
SlurmdPidFile=$state/slurmd.pid
SlurmctldLogFile=$state/slurmctld.log
SlurmdLogFile=$state/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,batch_sched_delay=0,bf_interval=1
SchedulerType=sched/backfill
JobRequeue=1
MinJobAge=300
KillWait=5
ReturnToService=2
GresTypes=gpu
# More than there are: tests ask for the CPUs of big machines too.
NodeName=$node NodeAddr=127.0.0.1 CPUs=16 CoresPerSocket=16 RealMemory=64000 Gres=gpu:$gpus State=UNKNOWN
PartitionName=main Nodes=$node Default=YES MaxTime=INFINITE State=UP PriorityTier=1
PartitionName=urgent Nodes=$node MaxTime=INFINITE State=UP PriorityTier=2
EOF
# slurmd refuses a configuration with more than the hardware has, unless told not to look.
sed -i 's/^SlurmdUser=root/&\nSlurmdParameters=config_overrides/' /etc/slurm/slurm.conf

pgrep -x slurmctld >/dev/null || slurmctld
pgrep -x slurmd >/dev/null || slurmd
for _ in $(seq 100); do
  [ "$(sinfo --noheader --format=%T 2>/dev/null | sort -u | head -1)" = idle ] && exit 0
  sleep 0.1
done
echo "slurm did not come up: see $state/*.log" >&2
exit 1
