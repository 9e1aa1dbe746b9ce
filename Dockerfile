# fedcel in a container: the command line, the service, a SuperLink or a node; docs/how-to/deploy-a-federation.md.
#
# A build that is the same tomorrow: --build-arg BASE=python:3.13-slim@sha256:DIGEST, the digest from
# `docker buildx imagetools inspect python:3.13-slim`.
ARG BASE=python:3.13-slim
FROM ${BASE}
# torch with CUDA; 4 GB less without: --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cpu
ARG TORCH_INDEX=
ARG EXTRAS=all
WORKDIR /opt/fedcel

# What fedcel needs comes before fedcel: a change of its code installs none of it again.
COPY pyproject.toml README.md LICENSE ./
RUN mkdir fedcel strategies clients sims \
    && touch fedcel/__init__.py strategies/__init__.py clients/__init__.py sims/__init__.py \
    && pip install --no-cache-dir ${TORCH_INDEX:+--extra-index-url "${TORCH_INDEX}"} torch torchvision \
    && pip install --no-cache-dir ".[${EXTRAS}]" \
    && pip uninstall --yes fedcel \
    && rm -rf fedcel strategies clients sims build
COPY fedcel fedcel
COPY strategies strategies
COPY clients clients
COPY sims sims
RUN pip install --no-cache-dir --no-deps . && rm -rf build
COPY examples/deployment examples/deployment

# A number: Kubernetes' runAsNonRoot cannot tell what a name stands for.
RUN groupadd --gid 10001 fedcel && useradd --create-home --uid 10001 --gid 10001 fedcel
USER 10001:10001
WORKDIR /home/fedcel
ENV PATH=/opt/fedcel/examples/deployment:$PATH HOME=/home/fedcel \
    FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 OMP_NUM_THREADS=1
# Of whatever the container runs: health.py finds out by the port that it answers on.
HEALTHCHECK --interval=30s --timeout=10s --start-period=60s \
    CMD ["python", "/opt/fedcel/examples/deployment/health.py"]
ENTRYPOINT ["fedcel"]
CMD ["--help"]
