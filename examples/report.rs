//! What a program in Rust does with a request's routing: those of candle and llama.cpp share it.

use std::path::Path;

use routecap::Routing;

/// Waits for it and prints it: how much is there, what is missing, and the busiest expert of each
/// layer.
pub fn print(name: &str, routing: &Routing) -> routecap::Result<()> {
    let completeness = routing.wait()?;
    let view = routing.view()?;
    println!(
        "{name}: {} rows x {} layers x {} experts: {completeness:?}",
        view.rows(),
        view.layers(),
        view.k()
    );
    for block in routing.missing()? {
        let layers = &view.layer_map()
            [block.first_layer as usize..(block.first_layer + block.layers) as usize];
        println!(
            "  missing: rows {}..{} of decoder layers {layers:?} ({:?})",
            block.first,
            block.first + block.rows,
            block.reason()
        );
    }
    for ((layer, experts), decoder_layer) in (0..).zip(view.layer_experts()).zip(view.layer_map()) {
        let mut load = vec![0; *experts as usize];
        let cells: Vec<_> = view.iter().filter_map(|row| row.experts(layer)).collect();
        cells.iter().flat_map(|ids| ids.iter()).for_each(|expert| load[usize::from(expert)] += 1);
        let (expert, rows) =
            load.iter().enumerate().rev().max_by_key(|(_, rows)| **rows).unwrap_or((0, &0));
        println!(
            "  layer {decoder_layer}: busiest expert {expert}, in {rows} of {} rows",
            cells.len()
        );
    }
    Ok(())
}

/// Writes it in the serialised form, to FOLDER/request-NUMBER.routecap, and beside it the texts of
/// its tokens, which are bytes: what the command `routecap show FOLDER` shows.
pub fn save(
    folder: &Path,
    number: usize,
    prompt: &[u8],
    generated: &[u8],
    routing: &Routing,
) -> Result<(), Box<dyn std::error::Error>> {
    std::fs::write(folder.join(format!("request-{number}.routecap")), routing.serialize()?)?;
    let escape = |byte: u8| {
        format!(
            r#""\u{:04x}""#,
            if byte < 0x80 { u16::from(byte) } else { 0xdc00 | u16::from(byte) }
        )
    };
    let tokens: Vec<String> = prompt.iter().chain(generated).map(|byte| escape(*byte)).collect();
    let info =
        format!(r#"{{"tokens": [{}], "prompt_tokens": {}}}"#, tokens.join(", "), prompt.len());
    Ok(std::fs::write(folder.join(format!("request-{number}.json")), info)?)
}
