// What Grafana takes for a dashboard of time series from Prometheus, by its own schema.
import type { Dashboard as AnyDashboard, Panel as AnyPanel } from
    "@grafana/schema/dist/types/raw/dashboard/x/types.gen";
import type { Options } from
    "@grafana/schema/dist/types/raw/composable/timeseries/panelcfg/x/types.gen";
import type { Prometheus } from "./package/dist/types/dataquery";

type Panel = Omit<AnyPanel, "type" | "targets" | "options"> & {
    type: "timeseries";
    targets: Prometheus[];
    options?: Partial<Options>;
};

export type Dashboard = Omit<AnyDashboard, "panels"> & { panels: Panel[] };
