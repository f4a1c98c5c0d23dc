# saturate on NVIDIA's PyTorch image.
#
#   docker build -t saturate . && mkdir -p runs
#   docker run --rm --gpus all --init --shm-size 1g --ulimit memlock=-1 --ulimit stack=67108864 \
#     --user "$(id -u):$(id -g)" -v /path/to/imagenet:/data:ro -v "$PWD/runs:/opt/saturate/runs" \
#     -v saturate-cache:/home/saturate/.cache saturate python train.py --config configs/imagenet/resnet50.yaml --data /data
#
# 26.09 carries torch 2.14.0a0+b2c75dd062.nv26.09, CUDA 13.4, Python 3.12 and Ubuntu 24.04, for drivers from R580 on:
# https://docs.nvidia.com/deeplearning/frameworks/pytorch-release-notes/rel-26-09.html
# Older ones have torch 2.11 from 26.02 on, but that one's DALI 2.0 cannot read stored pixels: the import check below says so.
ARG BASE=nvcr.io/nvidia/pytorch:26.09-py3
FROM ${BASE}
# Packages beside those of requirements.txt: docker build --build-arg EXTRAS="s3fs timm onnx onnxscript onnxruntime" -t saturate .
ARG EXTRAS=""

SHELL ["/bin/bash", "-o", "pipefail", "-c"]
WORKDIR /opt/saturate
COPY requirements.txt ./

# What the image brings stays as NVIDIA built it: torch and torchvision always; DALI and nvImageCodec when they are there,
# because nvidia-dali-cuda120 beside a bundled nvidia-dali-cuda130 writes into the same folder.
RUN set -eu; \
    has() { python -c 'import importlib.util as u, sys; sys.exit(u.find_spec(sys.argv[1]) is None)' "$1" 2>/dev/null; }; \
    bundled='torch|torchvision'; \
    if has nvidia.dali; then bundled+='|nvidia-dali-cuda[0-9]+'; fi; \
    if has nvidia.nvimgcodec; then bundled+='|nvidia-nvimgcodec-cu[0-9]+'; fi; \
    grep -Eiv "^(${bundled})([^[:alnum:]_-]|$)" requirements.txt > requirements.image.txt

# Since 25.03 these images pin every package they were made with in a constraint file (PIP_CONSTRAINT): where one is older than
# our floor, the install would have no solution. So only what the image's own builds were compiled against stays pinned; pip
# leaves every other package alone that is new enough.
RUN set -eu; \
    python -m pip list --format=freeze | grep -Ei '^(torch|torchvision|triton|pytorch-triton|numpy)==' > constraint.image.txt || true; \
    PIP_CONSTRAINT="$PWD/constraint.image.txt" python -m pip install --no-cache-dir --requirement requirements.image.txt ${EXTRAS}; \
    rm requirements.image.txt constraint.image.txt

COPY . .
# else each start of a user who cannot write here compiles it again
RUN python -m compileall -q .

# Any user may run it (--user): runs and the shared folder of caches are writable for all, and USER names one for whom the image
# has no entry. The entry point gives each user a cache and a name of their own. HOME is outside the volume of caches: what is started
# around the entry point (--entrypoint) shares nothing with other users.
ENV HOME=/tmp \
    USER=saturate \
    SATURATE_CACHES=/home/saturate/.cache
RUN set -eu; \
    useradd --no-log-init --create-home --home-dir /home/saturate --uid 10001 saturate; \
    install -d -m 755 /home/saturate; \
    install -d -m 1777 runs "${SATURATE_CACHES}"

# video: nvJPEG's engine and NVDEC are not visible to a container without it.
ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility,video

USER 10001

# Everything that saturate imports is here (PyNvVideoCodec does not load without a driver, which a build does not have), and DALI is
# new enough (2.2 reads stored pixels) whoever brought it. What these commands leave in HOME would shut out other users.
RUN set -eu; \
    python -c 'import torch, torchvision; print("torch", torch.__version__, "torchvision", torchvision.__version__)'; \
    python -c 'import av, cv2, faster_coco_eval, filelock, msgspec, numba, numpy, nvidia.nvimgcodec, PIL, psutil, pycocotools.mask, pydantic, pynvml'; \
    python -c 'import lmdb, matplotlib, pyarrow, rich, safetensors, tensorboard, yaml'; \
    if [ "$(uname -m)" = x86_64 ]; then python -c 'import decord, importlib.util as u; exit(u.find_spec("PyNvVideoCodec") is None)'; fi; \
    python -c 'import nvidia.dali as d; v = d.__version__; \
      exit(f"DALI {v} of this BASE is too old: take a newer image" if tuple(map(int, v.split(".")[:2])) < (2, 2) else print("DALI", v))'; \
    python train.py --help-all > /dev/null; \
    find /tmp -mindepth 1 -user 10001 -delete

# torchrun --standalone
ENTRYPOINT ["python", "/opt/saturate/scripts/entry_point.py"]
CMD ["train.py", "--help"]
