# fedcel in a container: the command line, the service, or a Flower node; see docs/deployment.md.
FROM python:3.13-slim
WORKDIR /opt/fedcel
COPY pyproject.toml README.md LICENSE ./
COPY fedcel fedcel
COPY strategies strategies
COPY clients clients
COPY sims sims
RUN pip install --no-cache-dir ".[all]" && useradd --create-home fedcel
USER fedcel
WORKDIR /home/fedcel
ENV FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 OMP_NUM_THREADS=1
ENTRYPOINT ["fedcel"]
CMD ["--help"]
