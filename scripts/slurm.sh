#!/bin/bash
# One run on several hosts, a task for each GPU: a time limit, a preemption or a crash is a requeue from last.pt.
#   sbatch scripts/slurm.sh --config configs/imagenet/resnet50.yaml --data IMAGENET --output /shared/r50
# Submit it from this folder, with the environment active. Flags of sbatch win over the lines below, and
# --output must name a folder that all hosts share. docs/cluster.md says what happens when.
#SBATCH --job-name=saturate
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=12
#SBATCH --time=24:00:00
#SBATCH --signal=USR1@90
#SBATCH --requeue
#SBATCH --open-mode=append

cd "$SLURM_SUBMIT_DIR" || exit 1

# the last --output counts
output=
while IFS= read -r word; do
  case $previous in --output) output=$word ;; esac
  case $word in --output=*) output=${word#*=} ;; esac
  previous=$word
done < <(printf '%s\n' "$@")
# tasks of an array are runs of their own
if [ -n "$SLURM_ARRAY_TASK_ID" ] && [ -n "$output" ]; then
  output=$output-$SLURM_ARRAY_TASK_ID
  set -- "$@" --output "$output"
fi

checkpoint() {
  stat --format='%i %Y %s' "$output/last.pt" 2>/dev/null
}
before=$(checkpoint)

# without kill-on-bad-exit the first task that has left does not end the one that writes the checkpoint;
# since Slurm 22.05 srun takes no --cpus-per-task from the job, and a task would be bound to one core
srun --kill-on-bad-exit=0 --cpus-per-task="$SLURM_CPUS_PER_TASK" python train.py --resume auto "$@"
code=$?

# after `scancel JOB` this line is not reached. 2 and 3 would come again, 130 was Ctrl-C
case $code in 0 | 2 | 3 | 130) exit "$code" ;; esac
# a limit that is shorter than a start, or a crash at one and the same step, would come again for ever
case $output in
  "" | *://*) ;; # no file to look at
  *)
    if [ "$(checkpoint)" = "$before" ] && [ "${SLURM_RESTART_COUNT:-0}" -ge 3 ]; then
      echo "slurm.sh: not requeued: exit code $code, after $SLURM_RESTART_COUNT restarts no new $output/last.pt" >&2
      exit "$code"
    fi
    ;;
esac
scontrol requeue "$SLURM_JOB_ID"
exit "$code"
