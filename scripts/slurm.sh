#!/bin/bash
# One run on several hosts, a task for each GPU: a time limit or a preemption is a checkpoint and a requeue.
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

# without kill-on-bad-exit the first task that has left does not end the one that writes the checkpoint;
# since Slurm 22.05 srun takes no --cpus-per-task from the job, and a task would be bound to one core
srun --kill-on-bad-exit=0 --cpus-per-task="$SLURM_CPUS_PER_TASK" python train.py --resume auto "$@"
code=$?

# asked to stop, and saved; after `scancel JOB` this line is not reached
if [ "$code" = 143 ]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
