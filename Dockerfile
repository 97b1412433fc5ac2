FROM python:3.12-slim

RUN apt-get update \
    && apt-get install -y --no-install-recommends git tini \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --create-home loopwarden \
    && install -d -o loopwarden -g loopwarden -m 0700 /data

WORKDIR /app

# Dependencies in a layer of their own: they change less often than the code.
COPY pyproject.toml ./
RUN python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['dependencies'], sep='\n')" > /tmp/requirements.txt \
    && pip install --no-cache-dir -r /tmp/requirements.txt \
    && rm /tmp/requirements.txt

COPY . .
RUN pip install --no-cache-dir --no-deps --editable .

ENV LOOPWARDEN_DATA=/data \
    PYTHONUNBUFFERED=1
USER loopwarden
VOLUME /data
EXPOSE 8700

# As process 1, tini collects what killed commands leave behind.
ENTRYPOINT ["tini", "--"]
CMD ["python", "-m", "uvicorn", "dashboard.asgi:application", "--host", "0.0.0.0", "--port", "8700", "--no-access-log", "--timeout-graceful-shutdown", "5"]
