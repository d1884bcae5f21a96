# tvm_rnn for NVIDIA GPUs: docker build -f .github/docker/cuda.Dockerfile -t tvm_rnn:cuda .
# docker run --rm --gpus all -v "$PWD:/data" tvm_rnn:cuda compile lstm --target cuda -o lstm.so ...
FROM nvidia/cuda:13.0.1-devel-ubuntu24.04
RUN apt-get update && apt-get install -y --no-install-recommends g++ python3-venv && rm -rf /var/lib/apt/lists/*
COPY . /src
RUN python3 -m venv /opt/venv && /opt/venv/bin/pip install --no-cache-dir "/src[onnx]" && rm -rf /src
ENV PATH="/opt/venv/bin:$PATH"
# That image's user ubuntu, by its number, which a cluster can see not to be root's.
USER 1000
WORKDIR /data
ENTRYPOINT ["tvm-rnn"]
