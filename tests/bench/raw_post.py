"""The limit: a loop that posts prepared nodes with 16 threads, and does nothing else.

    python -m tests.bench.raw_post KUBECONFIG BODIES [PATH]

BODIES has one object per line, as JSON. PATH is their collection, by default nodes. It is a separate program, so
that it is measured from its start like the others.
"""

import ssl
import sys
import threading
from pathlib import Path
from urllib.parse import urlsplit

import urllib3
from kubernetes import client, config

THREADS = 16


def main(kubeconfig: str, file: str, path: str = "/api/v1/nodes") -> None:
    """Post every line."""
    configuration = client.Configuration()
    config.load_kube_config(kubeconfig, client_configuration=configuration)  # type: ignore[no-untyped-call]
    context = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
    context.load_cert_chain(configuration.cert_file or "", configuration.key_file)
    host = urlsplit(configuration.host)
    pool = urllib3.HTTPSConnectionPool(host.hostname or "", host.port, maxsize=THREADS, ssl_context=context)
    bodies = iter(Path(file).read_bytes().splitlines())
    lock = threading.Lock()
    refused: list[int] = []

    def post() -> None:
        while True:
            with lock:
                body = next(bodies, None)
            if body is None:
                return
            headers = {"Content-Type": "application/json"}
            response = pool.urlopen("POST", path, body=body, headers=headers, retries=False)
            if response.status != 201:
                refused.append(response.status)

    threads = [threading.Thread(target=post) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if refused:
        sys.exit(f"refused: {refused[:5]}")


if __name__ == "__main__":
    main(*sys.argv[1:])
