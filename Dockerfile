# docker build --target cpu -t fedpm:cpu .       PyTorch for the CPU: the smaller image
# docker build --target cuda -t fedpm:cuda .     PyTorch with CUDA, the default; run it with --gpus all
#
# docker run --rm -v "$PWD:/work" fedpm:cpu fit --config quickstart
# docker run --rm -v "$PWD:/work" --gpus all fedpm:cuda fit --config cifar100_resnet18 --trainer.accelerator gpu
#
# A method or a loader of yours lies in the folder that is mounted at /work; runs and decoded data are written there too.

FROM python:3.12 AS wheel
WORKDIR /src
COPY . .
RUN git config --global --add safe.directory /src && pip install --no-cache-dir build && python -m build --wheel --outdir /dist

FROM python:3.12-slim AS base
ENV PYTHONUNBUFFERED=1 FEDPM_DATA=/work/data_cache HF_HOME=/work/data_cache/huggingface MPLCONFIGDIR=/tmp/matplotlib
WORKDIR /work
ENTRYPOINT ["fedpm"]
CMD ["--help"]

FROM base AS cpu
RUN pip install --no-cache-dir --index-url https://download.pytorch.org/whl/cpu torch torchvision
RUN --mount=from=wheel,source=/dist,target=/dist \
    pip install --no-cache-dir "$(ls /dist/*.whl)[hf,tables,plots,dashboard,reports,safetensors,onnx,tensorboard,privacy,timm]"

FROM base AS cuda
# PyPI's wheels of PyTorch for Linux bring CUDA's libraries; the driver is the host's.
RUN --mount=from=wheel,source=/dist,target=/dist \
    pip install --no-cache-dir "$(ls /dist/*.whl)[hf,tables,plots,dashboard,reports,safetensors,onnx,tensorboard,privacy,timm]"
