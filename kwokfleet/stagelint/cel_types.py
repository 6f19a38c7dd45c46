"""Tables for `cel`: tokens, types, functions and operators of CEL in kwok v0.8.0.

The types are those of `pkg/utils/cel/default.go`, with the fields of Kubernetes 1.36.
"""

import re

FIELDS = {
    "Node": "metadata:ObjectMeta spec:NodeSpec status:NodeStatus",
    "NodeSpec": "podCIDR:string podCIDRs:[string] providerID:string unschedulable:bool taints:[opaque]"
    " configSource:opaque externalID:string",
    "NodeStatus": "capacity:ResourceList allocatable:ResourceList phase:string conditions:[opaque] addresses:[opaque]"
    " daemonEndpoints:opaque nodeInfo:opaque images:[opaque] volumesInUse:[string] volumesAttached:[opaque]"
    " config:opaque runtimeHandlers:[opaque] features:opaque declaredFeatures:[string]",
    "Pod": "metadata:ObjectMeta spec:PodSpec status:PodStatus",
    "PodSpec": "volumes:[opaque] initContainers:[Container] containers:[Container] ephemeralContainers:[opaque]"
    " restartPolicy:string terminationGracePeriodSeconds:int activeDeadlineSeconds:int dnsPolicy:string"
    " nodeSelector:{string} serviceAccountName:string serviceAccount:string automountServiceAccountToken:bool"
    " nodeName:string hostNetwork:bool hostPID:bool hostIPC:bool shareProcessNamespace:bool securityContext:opaque"
    " imagePullSecrets:[opaque] hostname:string subdomain:string affinity:opaque schedulerName:string"
    " tolerations:[opaque] hostAliases:[opaque] priorityClassName:string priority:int dnsConfig:opaque"
    " readinessGates:[opaque] runtimeClassName:string enableServiceLinks:bool preemptionPolicy:string"
    " overhead:ResourceList topologySpreadConstraints:[opaque] setHostnameAsFQDN:bool os:opaque hostUsers:bool"
    " schedulingGates:[opaque] resourceClaims:[opaque] resources:ResourceRequirements hostnameOverride:string"
    " schedulingGroup:opaque",
    "PodStatus": "observedGeneration:int phase:string conditions:[opaque] message:string reason:string"
    " nominatedNodeName:string hostIP:string hostIPs:[opaque] podIP:string podIPs:[opaque] startTime:timestamp"
    " initContainerStatuses:[opaque] containerStatuses:[opaque] qosClass:string ephemeralContainerStatuses:[opaque]"
    " resize:string resourceClaimStatuses:[opaque] extendedResourceClaimStatus:opaque"
    " allocatedResources:ResourceList resources:ResourceRequirements nodeAllocatableResourceClaimStatuses:[opaque]",
    "Container": "name:string image:string command:[string] args:[string] workingDir:string ports:[opaque]"
    " envFrom:[opaque] env:[opaque] resources:ResourceRequirements resizePolicy:[opaque] restartPolicy:string"
    " restartPolicyRules:[opaque] volumeMounts:[opaque] volumeDevices:[opaque] livenessProbe:opaque"
    " readinessProbe:opaque startupProbe:opaque lifecycle:opaque terminationMessagePath:string"
    " terminationMessagePolicy:string imagePullPolicy:string securityContext:opaque stdin:bool stdinOnce:bool tty:bool",
    "ResourceRequirements": "limits:ResourceList requests:ResourceList claims:[opaque]",
    "ObjectMeta": "name:string generateName:string namespace:string selfLink:string uid:string resourceVersion:string"
    " generation:int creationTimestamp:timestamp deletionTimestamp:timestamp deletionGracePeriodSeconds:int"
    " labels:{string} annotations:{string} ownerReferences:[opaque] finalizers:[string] managedFields:[opaque]",
}
"""Go types that kwok registers, with their fields by JSON name. `opaque`: not registered, fields not readable."""

TYPES = {name: dict(field.split(":") for field in fields.split()) for name, fields in FIELDS.items()}

PLAIN = frozenset({"bool", "int", "uint", "double", "string", "bytes", "timestamp", "duration"})
ARITHMETIC = {
    "+": {
        **{(same, same): same for same in ("int", "uint", "double", "string", "bytes", "duration")},
        ("timestamp", "duration"): "timestamp",
        ("duration", "timestamp"): "timestamp",
    },
    "-": {
        **{(same, same): same for same in ("int", "uint", "double", "duration")},
        ("timestamp", "timestamp"): "duration",
        ("timestamp", "duration"): "timestamp",
    },
    "*": {(same, same): same for same in ("int", "uint", "double")},
    "/": {(same, same): same for same in ("int", "uint", "double")},
    "%": {(same, same): same for same in ("int", "uint")},
}
BINDING = {"||": 1, "&&": 2, "+": 4, "-": 4, "*": 5, "/": 5, "%": 5} | dict.fromkeys(
    ("==", "!=", "<", "<=", ">", ">=", "in"), 3
)

GLOBALS = {
    "Now": "timestamp", "Rand": "double", "SinceSecond": "double", "UnixSecond": "double", "Quantity": "dyn",
    "size": "int", "string": "string", "int": "int", "uint": "uint", "double": "double", "bool": "bool",
    "bytes": "bytes", "timestamp": "timestamp", "duration": "duration", "type": "dyn", "dyn": "dyn", "matches": "bool",
}  # fmt: skip
METHODS = {
    "SinceSecond": "double", "UnixSecond": "double", "Quantity": "dyn", "size": "int", "matches": "bool",
    "contains": "bool", "startsWith": "bool", "endsWith": "bool",
} | dict.fromkeys((
    "getDate", "getDayOfMonth", "getDayOfWeek", "getDayOfYear", "getFullYear", "getHours", "getMilliseconds",
    "getMinutes", "getMonth", "getSeconds",
), "int")  # fmt: skip
METRIC_NAMES = {"node": "Node", "pod": "Pod", "container": "Container"}
"""Variables in Metrics and (Cluster)ResourceUsages, instead of `self`."""
METRIC_GLOBALS = {"StartedContainersTotal": "dyn", "startedContainersTotal": "dyn"}
METRIC_METHODS = METRIC_GLOBALS | {"Usage": "double", "CumulativeUsage": "double"}
"""Additional functions and methods in Metrics and (Cluster)ResourceUsages."""
MACROS = {"all": (2,), "exists": (2,), "exists_one": (2,), "filter": (2,), "map": (2, 3)}
TYPE_NAMES = frozenset({"int", "uint", "double", "bool", "string", "bytes", "list", "map", "null_type", "type"})
RESERVED = frozenset({
    "as", "break", "const", "continue", "else", "for", "function", "if", "import", "let", "loop", "package",
    "namespace", "return", "var", "void", "while",
})  # fmt: skip
ALWAYS_THERE = frozenset({"metadata", "spec", "kind", "apiVersion"})
"""Fields that every object has: reading them cannot fail."""

_ESCAPE = r"""\\(?:[abfnrtv"'\\?`]|[xX][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-3][0-7]{2})"""
TOKEN = re.compile(
    rf"""
    (?P<space>[\t\x20\r\n\f]+|//[^\n]*)
    |(?P<bytes>[bB](?=[rR]?["']))?(?:
        (?P<raw>[rR](?:\"\"\".*?\"\"\"|'''.*?'''|"[^"\r\n]*"|'[^'\r\n]*'))
        |(?P<string>\"\"\"(?:{_ESCAPE}|[^\\])*?\"\"\"|'''(?:{_ESCAPE}|[^\\])*?'''
            |"(?:{_ESCAPE}|[^\\"\r\n])*"|'(?:{_ESCAPE}|[^\\'\r\n])*')
    )
    |(?P<double>\d+\.\d+(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+|\.\d+(?:[eE][+-]?\d+)?)
    |(?P<uint>(?:0x[0-9a-fA-F]+|\d+)[uU])
    |(?P<int>0x[0-9a-fA-F]+|\d+)
    |(?P<name>[_a-zA-Z][_a-zA-Z0-9]*)
    |(?P<mark>==|!=|<=|>=|&&|\|\||[()\[\]{{}}.,?:<>+\-*/%!])
    """,
    re.VERBOSE | re.DOTALL,
)
"""One token; the named group is its type."""
