"""The C entry points that are served, and how their arguments travel.

handle        a device handle                      in
value         a number                             in
text          a C string                           in
out           pointer to a number                  out
out_handle    pointer to a device handle           out
buffer        char buffer and its length           out: a string
list          pointer to a count and an array      out: numbers, NVML's two-call protocol
processes     the same with structures             out: mappings of their fields
struct        pointer to a structure               out: a mapping of its fields; "struct:a,b" reads a and b first
fields        a count and an array of field values in: (field, scope) each; out: (code, type, value) each
"""

from __future__ import annotations

SIGNATURES = {
    "nvmlInit_v2": "",
    "nvmlInitWithFlags": "value",
    "nvmlShutdown": "",
    "nvmlSystemGetDriverVersion": "buffer",
    "nvmlSystemGetNVMLVersion": "buffer",
    "nvmlSystemGetCudaDriverVersion": "out",
    "nvmlSystemGetCudaDriverVersion_v2": "out",
    # which GPU
    "nvmlDeviceGetCount_v2": "out",
    "nvmlDeviceGetHandleByIndex_v2": "value out_handle",
    "nvmlDeviceGetHandleBySerial": "text out_handle",
    "nvmlDeviceGetHandleByUUID": "text out_handle",
    "nvmlDeviceGetHandleByPciBusId_v2": "text out_handle",
    "nvmlDeviceGetName": "handle buffer",
    "nvmlDeviceGetSerial": "handle buffer",
    "nvmlDeviceGetUUID": "handle buffer",
    "nvmlDeviceGetIndex": "handle out",
    "nvmlDeviceGetMinorNumber": "handle out",
    "nvmlDeviceGetPciInfo_v3": "handle struct",
    "nvmlDeviceGetArchitecture": "handle out",
    "nvmlDeviceGetBrand": "handle out",
    "nvmlDeviceGetCudaComputeCapability": "handle out out",
    "nvmlDeviceGetNumGpuCores": "handle out",
    "nvmlDeviceGetAttributes_v2": "handle struct",
    "nvmlDeviceGetMemoryInfo": "handle struct",
    "nvmlDeviceGetMemoryInfo_v2": "handle struct",
    "nvmlDeviceGetC2cModeInfoV": "handle struct",
    # what it is used for
    "nvmlDeviceGetUtilizationRates": "handle struct",
    "nvmlDeviceGetComputeRunningProcesses_v3": "handle processes",
    "nvmlDeviceGetGraphicsRunningProcesses_v3": "handle processes",
    "nvmlDeviceGetMPSComputeRunningProcesses_v3": "handle processes",
    "nvmlDeviceGetPersistenceMode": "handle out",
    "nvmlDeviceSetPersistenceMode": "handle value",
    # slices
    "nvmlDeviceGetMigMode": "handle out out",
    "nvmlDeviceIsMigDeviceHandle": "handle out",
    "nvmlDeviceGetMaxMigDeviceCount": "handle out",
    "nvmlDeviceGetMigDeviceHandleByIndex": "handle value out_handle",
    "nvmlDeviceGetDeviceHandleFromMigDeviceHandle": "handle out_handle",
    "nvmlDeviceGetGpuInstanceId": "handle out",
    "nvmlDeviceGetComputeInstanceId": "handle out",
    # energy, power, heat
    "nvmlDeviceGetTotalEnergyConsumption": "handle out",
    "nvmlDeviceGetPowerUsage": "handle out",
    "nvmlDeviceGetFieldValues": "handle fields",
    "nvmlDeviceGetPowerManagementMode": "handle out",
    "nvmlDeviceGetPowerManagementLimit": "handle out",
    "nvmlDeviceGetPowerManagementDefaultLimit": "handle out",
    "nvmlDeviceGetPowerManagementLimitConstraints": "handle out out",
    "nvmlDeviceGetEnforcedPowerLimit": "handle out",
    "nvmlDeviceSetPowerManagementLimit": "handle value",
    "nvmlDeviceGetTemperature": "handle value out",
    "nvmlDeviceGetTemperatureV": "handle struct:sensorType",
    "nvmlDeviceGetTemperatureThreshold": "handle value out",
    # clocks
    "nvmlDeviceGetClockInfo": "handle value out",
    "nvmlDeviceGetMaxClockInfo": "handle value out",
    "nvmlDeviceGetClock": "handle value value out",
    "nvmlDeviceGetSupportedMemoryClocks": "handle list",
    "nvmlDeviceGetSupportedGraphicsClocks": "handle value list",
    "nvmlDeviceSetGpuLockedClocks": "handle value value",
    "nvmlDeviceResetGpuLockedClocks": "handle",
    "nvmlDeviceSetMemoryLockedClocks": "handle value value",
    "nvmlDeviceResetMemoryLockedClocks": "handle",
    "nvmlDeviceGetPowerState": "handle out",
    "nvmlDeviceGetPerformanceState": "handle out",
    "nvmlDeviceGetCurrentClocksEventReasons": "handle out",
    "nvmlDeviceGetCurrentClocksThrottleReasons": "handle out",
    "nvmlDeviceGetSupportedClocksEventReasons": "handle out",
    "nvmlDeviceGetSupportedClocksThrottleReasons": "handle out",
}
"""Name of the C function -> its arguments in order, words as in the table above."""
