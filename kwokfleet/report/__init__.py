"""Results as tables, HTML, CSV, JUnit, ClusterLoader2 and kube-burner files.

Entry point: `writer`. Every other module is pure. May import: measure, documents.
"""
