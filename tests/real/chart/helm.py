"""Renders and checks a chart with Helm's own engine, in the package `helm-python-sdk`.

helm.py CHART FILE…: prints a list of JSON with an object for each file of values: `manifests`, the
rendered text by template, and `findings` of `helm lint`; or `error` if the chart refuses the values.
"""

import json
import sys

import helm_python as helm

RELEASE = "demo"
NAMESPACE = "rollout"


def rendered(chart, directory, path):
    with open(path, encoding="utf-8") as file:
        values = helm.values_from_yaml(file.read())
    try:
        # Rendering alone does not read values.schema.json.
        chart.validate_schema(values)
        manifests = chart.render(values, name=RELEASE, namespace=NAMESPACE, is_install=True)
    except helm.HelmError as error:
        return {"error": str(error)}
    report = helm.lint(directory, values, strict=True, namespace=NAMESPACE)
    # Severities: 1 is a remark, 2 a warning, 3 an error.
    findings = [found["error"] for found in report["messages"] if found["severity"] > 1]
    return {"manifests": manifests, "findings": findings + report["errors"]}


def main():
    directory, *files = sys.argv[1:]
    with helm.Chart.load(directory) as chart:
        json.dump([rendered(chart, directory, path) for path in files], sys.stdout)


main()
