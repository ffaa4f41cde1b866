"""The scripts that start an exported program on the plan's nodes: torchrun by hand, Slurm, a Kubernetes job."""

from __future__ import annotations

from autoplan.cluster import ClusterSpec
from autoplan.export.owned_files import LAUNCHERS

PORT = 29500


def launchers(cluster: ClusterSpec, script: str) -> dict[str, str]:
    """Each by its name in the exported folder; none for one node, where torchrun needs nothing else.

    script  train.py, or run.py
    """
    if cluster.nodes == 1:
        return {}
    nodes, devices = cluster.nodes, cluster.devices_per_node
    made = zip(LAUNCHERS, (by_hand, slurm, kubernetes), strict=True)
    return {name: make(nodes, devices, script) for name, make in made}


def by_hand(nodes: int, devices: int, script: str) -> str:
    return f"""#!/bin/sh
# On each of {nodes} nodes: sh launch/torchrun.sh HOST, where HOST is one node that all others reach.
set -eu
HOST=${{1:?give the name of the node at which all meet}}
shift
FOLDER=$(cd "$(dirname "$0")/.." && pwd)
exec torchrun --nnodes {nodes} --nproc-per-node {devices} --rdzv-backend c10d --rdzv-id "${{RUN_ID:-autoplan}}" \\
    --rdzv-endpoint "$HOST:{PORT}" "$FOLDER/{script}" "$@"
"""


def slurm(nodes: int, devices: int, script: str) -> str:
    return f"""#!/bin/sh
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node={devices}
#SBATCH --exclusive
# sbatch launch/slurm.sbatch, from the exported folder; torchrun starts {devices} processes on each node.
set -eu
HOST=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun torchrun --nnodes {nodes} --nproc-per-node {devices} --rdzv-backend c10d --rdzv-id "$SLURM_JOB_ID" \\
    --rdzv-endpoint "$HOST:{PORT}" "$SLURM_SUBMIT_DIR/{script}" "$@"
"""


def kubernetes(nodes: int, devices: int, script: str) -> str:
    return f"""# An indexed job: {nodes} pods of {devices} GPUs that meet at the first one.
# Fill in IMAGE, and PLAN: the volume that holds the exported folder.
apiVersion: v1
kind: Service
metadata:
  name: autoplan
spec:
  clusterIP: None
  selector:
    job-name: autoplan
---
apiVersion: batch/v1
kind: Job
metadata:
  name: autoplan
spec:
  completions: {nodes}
  parallelism: {nodes}
  completionMode: Indexed
  backoffLimit: 0
  template:
    spec:
      subdomain: autoplan
      restartPolicy: Never
      containers:
        - name: train
          image: IMAGE
          command: ["torchrun", "--nnodes", "{nodes}", "--nproc-per-node", "{devices}", "--rdzv-backend", "c10d",
                    "--rdzv-id", "autoplan", "--rdzv-endpoint", "autoplan-0.autoplan:{PORT}", "/plan/{script}"]
          resources:
            limits:
              nvidia.com/gpu: {devices}
          volumeMounts:
            - {{name: plan, mountPath: /plan}}
            - {{name: shm, mountPath: /dev/shm}}
      volumes:
        - name: plan
          persistentVolumeClaim: {{claimName: PLAN}}
        - name: shm
          emptyDir: {{medium: Memory}}
"""
