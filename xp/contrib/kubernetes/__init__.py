"""Kubernetes: a Job for stages on one node, KubeRay's RayJob and a JobSet for several."""
