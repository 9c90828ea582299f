# The service. CPU:   docker build -t lrt-asr .
#              CUDA:  docker build --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu128 -t lrt-asr:cuda .
# Run: docker run -p 8000:8000 -v $PWD/exp/aishell1/lrt_r100:/models/lrt_r100:ro lrt-asr /models/lrt_r100
# The tag is not pinned by digest, since no registry could be reached where this was written. To pin it:
#   docker build --build-arg BASE=python:3.11-slim@sha256:... (`docker buildx imagetools inspect` tells).
ARG BASE=python:3.11-slim
FROM ${BASE}

ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
WORKDIR /app

# Before the sources, so that a change in them does not fetch torch again. All packages are compared
# with their hashes, but torch and CUDA's libraries: their builds differ by index.
COPY constraints.txt requirements.lock ./
RUN pip install --no-cache-dir --no-deps --require-hashes -r requirements.lock
RUN pip install --no-cache-dir -c constraints.txt --index-url ${TORCH_INDEX} torch

COPY pyproject.toml setup.py README.md LICENSE ./
COPY asr asr
COPY data_prep data_prep
COPY serve serve
COPY recipes recipes
RUN pip install --no-cache-dir --no-deps --no-build-isolation . && useradd --create-home --uid 1000 asr

# By number, so that Kubernetes sees that it is not root.
USER 1000
EXPOSE 8000
HEALTHCHECK --start-period=60s CMD \
    ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/health/ready')"]
ENTRYPOINT ["asr", "serve", "--host", "0.0.0.0"]
