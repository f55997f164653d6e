"""Calls a scaler once as KEDA does for a trigger: `call.py ADDRESS TOKEN FILE`, where the file has the metadata of the trigger."""

import json
import pathlib
import sys

import externalscaler_pb2 as pb
import externalscaler_pb2_grpc as rpc
import grpc

address, token, file = sys.argv[1:]
metadata = json.loads(pathlib.Path(file).read_text())
# KEDA replaces the name of the variable by its value.
metadata["tokenFromEnv"] = token
of = pb.ScaledObjectRef(name="lisa-consumer", namespace="default", scalerMetadata=metadata)
with grpc.insecure_channel(address) as channel:
    scaler = rpc.ExternalScalerStub(channel)
    (spec,) = scaler.GetMetricSpec(of, timeout=10).metricSpecs
    (value,) = scaler.GetMetrics(pb.GetMetricsRequest(scaledObjectRef=of, metricName=spec.metricName), timeout=10).metricValues
    print(f"{value.metricName} is {value.metricValueFloat:g}, with a target of {spec.targetSizeFloat:g}")
