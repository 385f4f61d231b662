#!/bin/bash
#SBATCH --job-name=nccl_vs_mpi-001
#SBATCH --partition=alpha
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --cpus-per-task=6
#SBATCH --gres=gpu:8
#SBATCH --mem-per-cpu=10312M
#SBATCH --exclusive
#SBATCH --time=0:15:00
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --output=output-%j.log
#SBATCH --open-mode=append

# Study nccl_vs_mpi, partition alpha: 4 cells of 10 workers on 2 nodes, about 6 min in all.
# Made by `horovod-study run`, which submits it; without it: cd to its folder, then sbatch script.sh
# The cells, in the order in which they are run:
#   horovod/nccl, 10 workers, 2 nodes, repeat 1  horovod-nccl-10w-b75-r0-0123456789ab
#   horovod/mpi, 10 workers, 2 nodes, repeat 1  horovod-mpi-10w-b75-r0-0123456789ab
#   horovod/nccl, 10 workers, 2 nodes, repeat 2  horovod-nccl-10w-b75-r1-0123456789ab
#   horovod/mpi, 10 workers, 2 nodes, repeat 2  horovod-mpi-10w-b75-r1-0123456789ab

set -euo pipefail

# Settings of the shell that submitted this are no part of the study.
for name in "${!HOROVOD_@}" "${!OMPI_@}" "${!PMIX_@}" "${!NCCL_@}" "${!SBATCH_@}" "${!PYTHON@}"; do
    case "$name" in HOROVOD_STUDY_*) ;; *) unset "$name" ;; esac
done
unset SLURM_EXPORT_ENV LD_PRELOAD

# A job's shell does not always know `module`.
if ! type module >/dev/null 2>&1; then
    for file in /etc/profile.d/lmod.sh /etc/profile.d/modules.sh /usr/share/lmod/lmod/init/bash \
        /usr/share/Modules/init/bash /usr/share/modules/init/bash; do
        if [ -r "$file" ]; then
            # shellcheck source=/dev/null
            . "$file"
            break
        fi
    done
fi
set +u  # module functions use variables that are not set
module purge
module load gcc/13.3
module load openmpi/4.1.6
module load cuda/12.4
set -u

# When the job is taken off its nodes, mpirun lets its ranks write a checkpoint (default: 1 s).
export OMPI_MCA_odls_base_sigkill_timeout=3
export HOROVOD_STUDY_DATA=/scratch/me/curves
export PYTHONPATH=/scratch/me/runs/nccl_vs_mpi/.code/0123456789ab

exec /home/me/horovod-study/.venv/bin/python -P -m horovod_study.studies.job /scratch/me/runs/nccl_vs_mpi/.jobs/nccl_vs_mpi-001
