// Package tools has no code: its import keeps the Prometheus operator, for its custom resource definitions, in go.mod.
package tools

import _ "github.com/prometheus-operator/prometheus-operator/pkg/versionutil"
