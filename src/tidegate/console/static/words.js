// Every word of the page, in the reader's language. Missing keys fall back to English.
const en = {
  skip: "Skip to the cluster map", language: "Language", theme: "Theme", theme_auto: "System", theme_light: "Light",
  theme_dark: "Dark", now: "Now", cluster: "Cluster", find: "Find an instance", filter_states: "Show states",
  legend: "The water in a tile is the share of KV blocks in use; hatched: the engine does not say. Arrow keys move, Enter opens.",
  last_quarter: "The last 15 minutes", ends: "How requests end", outcome: "Outcome", per_second: "per s",
  since_start: "since start", tenants: "Tenants", tenant: "Tenant", requests_s: "requests/s", tokens_s: "tokens/s",
  tokens: "tokens", left: "left this minute", events: "Events", no_events: "Nothing has happened yet.",
  no_requests: "No request has ended yet.", no_limit: "no limit", unknown: "unknown", close: "Close", none: "none",
  live: "live", lost: "connection lost, trying again", status_ok: "All models served", status_no_instance: "A model is not served",
  status_draining: "Draining", title_bad: "trouble",
  f_requests: "Requests", f_refused: "Refused", f_ttft: "TTFT P99", f_gap: "Gap P99", f_queue: "Queued",
  f_flight: "In flight", f_ready: "Instances ready", f_tokens: "Output tokens", f_kv: "KV used, fullest",
  per_s: "per second", promised: "promised {0}", of: "of {0}", of_asked: "of all asked", mean: "mean {0}", prompt_s: "{0} prompt/s",
  ready: "ready", launching: "launching", ejected: "ejected", draining: "draining", stopped: "stopped", tripped: "breaker open", all: "all",
  work: "{0} run · {1} wait", tile: "{0}, {1}, KV {2}, {3} running, {4} waiting", d_model: "Model", d_state: "State", d_url: "Address", d_kind: "Engine",
  d_kv: "KV blocks used", d_claimed: "used or spoken for", d_running: "Running", d_waiting: "Waiting in the engine",
  d_flight: "Our requests there", d_age: "Metrics", fresh: "fresh", old: "{0} s old",
  c_traffic: "Requests per second", c_ttft: "Time to first token", c_gap: "Gap between tokens", c_queue: "Queue and work",
  c_tokens: "Tokens per second", c_kv: "KV cache used", s_completed: "completed", s_refused: "refused",
  s_turned_away: "turned away", s_failed: "failed", s_cancelled: "client left", s_p50: "P50", s_p99: "P99",
  s_queued: "queued", s_in_flight: "in flight", s_prompt: "prompt", s_output: "output", s_mean: "mean", s_max: "fullest",
  chart: "{0}, last 15 minutes. Arrow keys read points. Now: {1}", limit: "promised", seconds_ago: "{0} ago",
  o_completed: "completed", o_client_cancelled: "client left", o_bad_request: "bad request", o_unauthorized: "unauthorized",
  o_unknown_model: "unknown model", o_body_too_large: "body too large", o_engine_refused: "refused by the engine",
  o_limited: "tenant's limit", o_queue_full: "queue full", o_queue_timeout: "waited too long", o_overloaded: "overloaded",
  o_no_instance: "no instance", o_draining: "draining", o_engine_unreachable: "engine unreachable",
  o_engine_error: "engine error", o_engine_timeout: "engine too slow", o_stream_broken: "stream broken",
  o_internal_error: "Tidegate's fault", o_client_timeout: "client gave up", o_truncated: "truncated",
  e_instance_moved: "{instance}: {state}, was {was}", e_instances_moved: "{count} instances: {state}, were {was}",
  e_instance_stale: "{instance} gives no fresh metrics", e_instances_stale: "{count} instances give no fresh metrics",
  e_instance_fresh: "{instance} gives metrics again", e_instances_fresh: "{count} instances give metrics again",
  e_served: "{model} is served", e_unserved: "{model} is not served: no instance is ready",
  e_refusing: "Requests are refused for want of room", e_refusing_over: "No more refusals for want of room",
  e_failing: "Requests fail", e_failing_over: "Requests no longer fail",
  e_late_ttft: "First tokens are late: P99 {value}", e_late_ttft_over: "First tokens are within the promise again",
  e_late_gap: "Gaps are too long: P99 {value}", e_late_gap_over: "Gaps are within the promise again",
  e_draining: "The gateway drains: no new requests",
};
const zh = {
  skip: "跳到集群图", language: "语言", theme: "主题", theme_auto: "跟随系统", theme_light: "浅色", theme_dark: "深色", now: "当前",
  cluster: "集群", find: "查找实例", filter_states: "显示状态",
  legend: "方块中的水位是已用 KV 块的比例；斜纹表示引擎未上报。方向键移动，回车查看。",
  last_quarter: "最近 15 分钟", ends: "请求结局", outcome: "结局", per_second: "每秒", since_start: "启动以来", tenants: "租户",
  tenant: "租户", requests_s: "请求/秒", tokens_s: "词元/秒", tokens: "词元", left: "本分钟剩余", events: "事件",
  no_events: "尚无事件。", no_requests: "尚无请求结束。", no_limit: "不限", unknown: "未知", close: "关闭", none: "无", live: "实时",
  lost: "连接中断，正在重试", status_ok: "所有模型均可服务", status_no_instance: "有模型无可用实例", status_draining: "正在排空",
  title_bad: "异常",
  f_requests: "请求", f_refused: "拒绝", f_ttft: "首词元 P99", f_gap: "词元间隔 P99", f_queue: "排队", f_flight: "处理中",
  f_ready: "就绪实例", f_tokens: "输出词元", f_kv: "KV 最高占用", per_s: "每秒", promised: "承诺 {0}", of: "共 {0}", of_asked: "占全部请求",
  mean: "平均 {0}", prompt_s: "提示 {0}/秒",
  ready: "就绪", launching: "启动中", ejected: "已摘除", draining: "排空中", stopped: "已停止", tripped: "熔断中", all: "全部",
  work: "运行 {0} · 等待 {1}", tile: "{0}，{1}，KV {2}，运行 {3}，等待 {4}", d_model: "模型", d_state: "状态", d_url: "地址", d_kind: "引擎", d_kv: "已用 KV 块",
  d_claimed: "已用或已预留", d_running: "运行中", d_waiting: "引擎内等待", d_flight: "本网关请求", d_age: "指标", fresh: "新鲜",
  old: "{0} 秒前", c_traffic: "每秒请求", c_ttft: "首词元时间", c_gap: "词元间隔", c_queue: "排队与处理", c_tokens: "每秒词元",
  c_kv: "KV 缓存占用", s_completed: "完成", s_refused: "拒绝", s_turned_away: "退回", s_failed: "失败", s_cancelled: "客户端离开",
  s_p50: "P50", s_p99: "P99", s_queued: "排队", s_in_flight: "处理中", s_prompt: "提示", s_output: "输出", s_mean: "平均",
  s_max: "最高", chart: "{0}，最近 15 分钟。方向键逐点朗读。当前：{1}", limit: "承诺", seconds_ago: "{0}前",
  o_completed: "完成", o_client_cancelled: "客户端离开", o_bad_request: "请求有误", o_unauthorized: "未授权",
  o_unknown_model: "未知模型", o_body_too_large: "请求体过大", o_engine_refused: "引擎拒绝", o_limited: "租户限额",
  o_queue_full: "队列已满", o_queue_timeout: "等待超时", o_overloaded: "过载", o_no_instance: "无可用实例", o_draining: "正在排空",
  o_engine_unreachable: "引擎不可达", o_engine_error: "引擎错误", o_engine_timeout: "引擎超时", o_stream_broken: "流中断",
  o_internal_error: "Tidegate 缺陷", o_client_timeout: "客户端放弃", o_truncated: "被截断",
  e_instance_moved: "{instance}：{state}，此前{was}", e_instances_moved: "{count} 个实例：{state}，此前{was}",
  e_instance_stale: "{instance} 的指标已过期", e_instances_stale: "{count} 个实例的指标已过期",
  e_instance_fresh: "{instance} 恢复上报指标", e_instances_fresh: "{count} 个实例恢复上报指标",
  e_served: "{model} 可服务", e_unserved: "{model} 无法服务：没有就绪实例", e_refusing: "因容量不足开始拒绝请求",
  e_refusing_over: "不再因容量不足拒绝请求", e_failing: "请求开始失败", e_failing_over: "请求不再失败",
  e_late_ttft: "首词元超时：P99 {value}", e_late_ttft_over: "首词元恢复到承诺之内", e_late_gap: "词元间隔过长：P99 {value}",
  e_late_gap_over: "词元间隔恢复到承诺之内", e_draining: "网关正在排空：不再接收新请求",
};
const languages = { en, zh };
let chosen = "en";

export function choose(language) {
  chosen = language in languages ? language : "en";
  document.documentElement.lang = chosen === "zh" ? "zh-CN" : "en";
  for (const one of document.querySelectorAll("[data-word]")) one.textContent = word(one.dataset.word);
  for (const one of document.querySelectorAll("[data-word-label]")) one.setAttribute("aria-label", word(one.dataset.wordLabel));
  for (const one of document.querySelectorAll("[data-word-placeholder]")) one.placeholder = word(one.dataset.wordPlaceholder);
}

export function word(key, ...values) {
  const text = languages[chosen][key] ?? en[key] ?? key;
  return text.replace(/\{(\d)\}/g, (_, number) => values[number]);
}

export function eventText(event) {
  const told = { ...event, state: word(event.state ?? ""), was: word(event.was ?? ""), value: seconds(event.value) };
  return (languages[chosen]["e_" + event.kind] ?? en["e_" + event.kind] ?? event.kind).replace(/\{(\w+)\}/g, (_, name) => told[name] ?? "");
}

// Figures. Unknown is a dash, never 0.
const missing = (value) => value === null || value === undefined;

export function count(value) {
  if (missing(value)) return "–";
  if (value >= 1e6) return (value / 1e6).toFixed(value >= 1e7 ? 0 : 1) + " M";
  if (value >= 1e4) return (value / 1e3).toFixed(value >= 1e5 ? 0 : 1) + " k";
  return value >= 100 || Number.isInteger(value) ? Math.round(value).toString() : value.toFixed(1);
}

export function seconds(value) {
  if (missing(value)) return "–";
  if (value === 0) return "0";
  if (value >= 10) return value.toFixed(0) + " s";
  return value >= 1 ? value.toFixed(1) + " s" : (value * 1000).toFixed(value < 0.01 ? 1 : 0) + " ms";
}

export function share(value) {
  if (missing(value)) return "–";
  const percent = value * 100;
  return (percent > 0 && percent < 10 ? percent.toFixed(1) : percent.toFixed(0)) + " %";
}
