# Images of Rollout.
#
#   docker build --target slim -t rollout:0.1.0 .        the static program and CA roots alone
#   docker build --target full -t rollout:0.1.0-full .   with git, git-lfs, docker compose and a shell
#
# PREBUILT names a static program in the build context, which is then not built:
#
#   .ci/static prebuilt
#   docker build --target slim --build-arg PREBUILT=prebuilt/rollout \
#     --build-arg BUILD_IMAGE=debian:trixie-slim -t rollout:0.1.0 .
#
# BUILD_IMAGE needs CA roots, and without PREBUILT a Rust toolchain. An image from which PACKAGES are
# present may be the BASE_IMAGE of `full` with an empty PACKAGES.
ARG BUILD_IMAGE=rust:1.95-trixie
ARG BASE_IMAGE=debian:trixie-slim

FROM ${BUILD_IMAGE} AS build
ARG PREBUILT=
WORKDIR /source
COPY . .
RUN set -eu; \
    mkdir -p /rootfs/usr/bin /rootfs/etc/ssl/certs /state/rollout /work/work/jobs; \
    if [ -n "$PREBUILT" ]; then cp "$PREBUILT" /rootfs/usr/bin/rollout; \
    else .ci/static /static && cp /static/rollout /rootfs/usr/bin/rollout; fi; \
    chmod 755 /rootfs/usr/bin/rollout; \
    cp /etc/ssl/certs/ca-certificates.crt /rootfs/etc/ssl/certs/; \
    echo 'rollout:x:65532:65532::/var/lib/rollout:/usr/bin/rollout' >/rootfs/etc/passwd; \
    echo 'rollout:x:65532:' >/rootfs/etc/group; \
    mkdir /rootfs/tmp; chmod 1777 /rootfs/tmp

FROM scratch AS slim
COPY --from=build /rootfs /
# Empty directories that the user may write: state of workers, and run directories.
COPY --from=build --chown=65532:65532 /state /var/lib
COPY --from=build --chown=65532:65532 /work /
ENV HOME=/var/lib/rollout
WORKDIR /work
USER 65532:65532
ENTRYPOINT ["/usr/bin/rollout"]
CMD ["--help"]

FROM ${BASE_IMAGE} AS full
ARG PACKAGES="ca-certificates docker-compose git git-lfs iproute2 nftables"
RUN set -eu; \
    if [ -n "$PACKAGES" ]; then \
      apt-get update; \
      DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $PACKAGES; \
      rm -rf /var/lib/apt/lists/*; \
    fi; \
    groupadd --gid 65532 rollout; \
    useradd --uid 65532 --gid 65532 --home-dir /var/lib/rollout --no-create-home rollout
COPY --from=build /rootfs/usr/bin/rollout /usr/bin/rollout
COPY --from=build --chown=65532:65532 /state /var/lib
COPY --from=build --chown=65532:65532 /work /
ENV HOME=/var/lib/rollout
WORKDIR /work
USER 65532:65532
ENTRYPOINT ["/usr/bin/rollout"]
CMD ["--help"]
